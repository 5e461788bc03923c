"""A spec survives JSON exactly, and every malformed file gets a one-line error."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SPECS, decoder

from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import PRESETS, preset
from qkv.model.spec_io import from_json, to_json


def error_of(run, *arguments) -> str:
    with pytest.raises(QkvError) as caught:
        run(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("spec", [*SPECS.values(), *(preset(name) for name in PRESETS)])
def test_a_spec_survives_json_exactly(spec):
    read = from_json(to_json(spec))
    assert read == spec
    assert hash(read) == hash(spec)
    assert to_json(read) == to_json(spec)


def test_the_json_has_the_fields_of_the_dataclasses():
    tree = json.loads(to_json(preset("mistral")))
    assert tree["decoder"]["layers"][0]["mixer"] == {
        "n_heads": 32,
        "n_kv_heads": 8,
        "d_head": 128,
        "window": 4096,
        "bias": False,
        "out_bias": False,
        "qk_norm": False,
        "dropout": 0.0,
        "kind": "attention",
    }
    assert tree["encoder"] is None and tree["positions"]["kind"] == "rotary"


def test_a_float_may_be_written_as_an_integer():
    text = to_json(replace(preset("gpt2"), dropout=0.0)).replace('"dropout": 0.0', '"dropout": 0')
    assert from_json(text).dropout == 0.0


def changed(**changes) -> str:
    """The JSON of a small model with values replaced at paths; a value of ... deletes."""
    tree = json.loads(to_json(decoder()))
    for path, value in changes.items():
        *parents, last = path.split("__")
        part = tree
        for key in parents:
            part = part["layers"][int(key)] if key.isdigit() else part[key]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return json.dumps(tree)


MIXERS = "attention, latent_attention, recurrent, convolution, token_mlp, pooling, custom"
MALFORMED = [
    ("{", "model.json: is not JSON; EOF while parsing an object at line 1 column 1"),
    ("[]", "model.json: cannot be []; use an object"),
    (changed(vocab_size=...), "model.json, vocab_size: is missing; write it down"),
    (
        changed(decoder__0__mixer__d_head=...),
        "model.json, decoder.0.mixer.d_head: is missing; write it down",
    ),
    (changed(vocab_sise=9), "model.json: no field 'vocab_sise'; did you mean 'vocab_size'?"),
    (
        changed(decoder__0__mixer__n_head=9),
        "model.json, decoder.0.mixer: no field 'n_head'; did you mean 'n_heads'?",
    ),
    (changed(vocab_size="9"), "model.json, vocab_size: cannot be '9'; use a whole number"),
    (changed(vocab_size=9.5), "model.json, vocab_size: cannot be 9.5; use a whole number"),
    (changed(vocab_size=True), "model.json, vocab_size: cannot be True; use a whole number"),
    (changed(vocab_size=None), "model.json, vocab_size: cannot be None; use a whole number"),
    (changed(dropout="much"), "model.json, dropout: cannot be 'much'; use a number"),
    (changed(scaled_embedding=1), "model.json, scaled_embedding: cannot be 1; use true or false"),
    (changed(decoder__layers=5), "model.json, decoder.layers: cannot be 5; use a list"),
    (changed(decoder=5), "model.json, decoder: cannot be 5; use an object"),
    (changed(decoder__0__mixer=5), "model.json, decoder.0.mixer: cannot be 5; use an object"),
    (
        changed(decoder__causal="pass"),
        "model.json, decoder.causal: cannot be 'pass'; use true or false",
    ),
    (
        changed(decoder__0__norm__kind="lyer"),
        "model.json, decoder.0.norm.kind: cannot be 'lyer'; did you mean 'layer'?",
    ),
    (
        changed(decoder__0__feed_forward__activation="rleu"),
        "model.json, decoder.0.feed_forward.activation: cannot be 'rleu'; did you mean 'relu'?",
    ),
    (
        changed(decoder__0__mixer__kind="attentoin"),
        "model.json, decoder.0.mixer: no kind 'attentoin'; did you mean 'attention'?",
    ),
    (
        changed(decoder__0__mixer__kind="x"),
        f"model.json, decoder.0.mixer: no kind 'x'; choose from {MIXERS}",
    ),
    (
        changed(decoder__0__mixer={"width": 3}),
        f"model.json, decoder.0.mixer: the kind is missing; choose from {MIXERS}",
    ),
    (
        changed(decoder__0__feed_forward={"d_ff": 3}),
        "model.json, decoder.0.feed_forward: the kind is missing; "
        "choose from dense, gated, mixture_of_experts, custom",
    ),
    (
        changed(decoder__0__repeat=10**12),
        "model.json, decoder.0.repeat: cannot be 1000000000000; use at most 4096",
    ),
    (
        changed(decoder__0__mixer__n_heads=10**12, decoder__0__mixer__n_kv_heads=7),
        "model.json, decoder.0.mixer.n_heads: cannot be 1000000000000; use at most 1048576",
    ),
    (
        changed(decoder__0__norm__eps=1e12),
        "model.json, decoder.0.norm.eps: cannot be 1000000000000.0; use at most 1",
    ),
    (changed(d_model=10**8), "model.json, d_model: cannot be 100000000; use at most 1048576"),
    (
        changed(vocab_sise=9, vocab_size=..., decoder__0__mixer__kind="attentoin", dropout="much"),
        "model.json, decoder.0.mixer: no kind 'attentoin'; did you mean 'attention'?"
        " | vocab_size: is missing; write it down"
        " | dropout: cannot be 'much'; use a number"
        " | no field 'vocab_sise'; did you mean 'vocab_size'?",
    ),
]


@pytest.mark.parametrize(("text", "line"), MALFORMED, ids=[line for _, line in MALFORMED])
def test_a_malformed_file_gets_one_line(text, line):
    assert error_of(from_json, text) == line


def test_an_unknown_preset_gets_a_suggestion():
    assert error_of(preset, "paper-bas") == "paper-bas: no such preset; did you mean 'paper-base'?"


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=5)
    | st.just("attention"),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "layers", "mixer", "d_ff", "expert", "norm", "Attention", "width", "?"]
            ),
            inside,
            max_size=3,
        )
    ),
    max_leaves=6,
)
PATHS = [
    "vocab_size",
    "decoder",
    "decoder__layers",
    "decoder__0__mixer",
    "decoder__0__mixer__kind",
    "positions",
    "head",
    "decoder__0__feed_forward",
    "decoder__0__norm",
    "decoder__0__cross",
    "positions__scaling",
    "new",
    "encoder",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(PATHS), ANY_JSON, min_size=1, max_size=1))
def test_any_value_in_a_file_gives_a_spec_or_one_line(changes):
    try:
        assert isinstance(from_json(changed(**changes)), s.Spec)
    except QkvError as error:
        assert str(error).startswith("model.json") and "\n" not in str(error).strip()


@settings(max_examples=100, deadline=None)
@given(ANY_JSON)
def test_any_other_json_gives_one_line(tree):
    assert error_of(from_json, json.dumps(tree)).startswith("model.json")
