"""A model is a value: it comes back from JSON exactly, and every mistake in it gets one whole line."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import SPECS, both, decoder, encoder

from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model import spec as s
from qkv.model.door import check, from_json, to_json
from qkv.model.presets import PRESETS, preset
from qkv.model.transformer import Transformer


def complaint(run, *arguments) -> str:
    with pytest.raises(QkvError) as caught:
        run(*arguments)
    return str(caught.value)


@pytest.mark.parametrize("spec", [*SPECS.values(), *(preset(name) for name in PRESETS)])
def test_a_spec_comes_back_from_json_exactly(spec):
    back = from_json(to_json(spec))
    assert back == spec
    assert hash(back) == hash(spec)
    assert to_json(back) == to_json(spec)


def test_the_json_is_the_tree_itself():
    tree = json.loads(to_json(preset("mistral")))
    assert tree["decoder"]["layers"][0]["mixer"] == {
        "n_heads": 32,
        "n_kv_heads": 8,
        "d_head": 128,
        "window": 4096,
        "bias": False,
        "out_bias": False,
        "qk_norm": False,
        "kind": "heads",
    }
    assert tree["encoder"] is None and tree["positions"]["kind"] == "rotary"


def test_a_number_may_be_written_without_its_point():
    text = to_json(replace(preset("gpt2"), dropout=0.0)).replace('"dropout": 0.0', '"dropout": 0')
    assert from_json(text).dropout == 0.0


# Every line a person may get for a value that fits its type and yet makes no model.
HEADS, FF = s.Heads(4, 2, 4), s.Gated(20)
LLAMA, YARN = s.LlamaScaling(8.0, 1.0, 4.0, 64), s.YarnScaling(4.0, 64)
IMPOSSIBLE = [
    (replace(decoder(), vocab_size=0), "spec, vocab_size: cannot be 0; use at least 1"),
    (replace(decoder(), d_model=-4), "spec, d_model: cannot be -4; use at least 1"),
    (replace(decoder(), max_len=0), "spec, max_len: cannot be 0; use at least 1"),
    (replace(decoder(), token_types=-1), "spec, token_types: cannot be -1; use at least 0"),
    (replace(decoder(), dropout=1.0), "spec, dropout: 1.0 is no share; use 0 <= dropout < 1"),
    (
        replace(decoder(), dropout=float("nan")),
        "spec, dropout: nan is no share; use 0 <= dropout < 1",
    ),
    (
        replace(decoder(), d_model=15, positions=s.Sinusoidal()),
        "spec, d_model: 15 is odd; sines and cosines come in pairs; use 16",
    ),
    (
        replace(decoder(), source_vocab_size=9),
        "spec, source_vocab_size: only an encoder-decoder has a source; use null",
    ),
    (both(source_vocab_size=0), "spec, source_vocab_size: cannot be 0; use at least 1"),
    (s.Spec(9, 8), "spec: there is no stack; give an encoder, a decoder or both"),
    (s.Spec(9, 8, decoder=s.Stack(())), "spec, decoder.layers: is empty; give at least one layer"),
    (decoder(positions=s.Learned(first=-1)), "spec, positions.first: cannot be -1; use at least 0"),
    (
        decoder(positions=s.Rotary(share=1.5)),
        "spec, positions.share: 1.5 is no share; use 0 < share <= 1",
    ),
    (decoder(positions=s.Rotary(base=1.0)), "spec, positions.base: cannot be 1.0; use more than 1"),
    (
        decoder(positions=s.Rotary(scaling=s.LinearScaling(0.0))),
        "spec, positions.scaling.factor: cannot be 0.0; use more than 0",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(LLAMA, first_len=0))),
        "spec, positions.scaling.first_len: cannot be 0; use at least 1",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(LLAMA, high_factor=1.0))),
        "spec, positions.scaling.high_factor: cannot be 1.0; use more than 1.0",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(YARN, beta_slow=0.0))),
        "spec, positions.scaling.beta_slow: cannot be 0.0; use more than 0",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(YARN, beta_fast=1.0))),
        "spec, positions.scaling.beta_fast: cannot be 1.0; use more than 1.0",
    ),
    (
        s.Spec(9, 8, decoder=s.Stack((s.Layer(HEADS, FF), s.Layer(s.Heads(2, 2, 8), FF)), "past")),
        "spec, decoder.layers: heads of different turned widths [4, 8]; use one width in a stack",
    ),
    (
        s.Spec(9, 8, decoder=s.Stack((s.Layer(HEADS, FF, repeat=0),))),
        "spec, decoder.0.repeat: cannot be 0; use at least 1",
    ),
    (decoder(norm=s.Norm(eps=-1e-5)), "spec, decoder.0.norm.eps: cannot be -1e-05; use at least 0"),
    (
        decoder(s.Heads(6, 4, 4)),
        "spec, decoder.0.mixer: 6 query heads cannot share 4 key/value heads; use 1, 2, 3 or 6",
    ),
    (decoder(s.Heads(0, 1, 4)), "spec, decoder.0.mixer.n_heads: cannot be 0; use at least 1"),
    (decoder(s.Heads(4, 0, 4)), "spec, decoder.0.mixer.n_kv_heads: cannot be 0; use at least 1"),
    (decoder(s.Heads(4, 4, -4)), "spec, decoder.0.mixer.d_head: cannot be -4; use at least 1"),
    (
        decoder(s.Heads(4, 4, 4, window=0)),
        "spec, decoder.0.mixer.window: cannot be 0; use at least 1",
    ),
    (
        decoder(s.Heads(4, 4, 5)),
        "spec, decoder.0.mixer: 5 turned dimensions do not pair up; use an even number, at least 2",
    ),
    (
        decoder(positions=s.Rotary(share=0.2)),
        "spec, decoder.0.mixer: 0 turned dimensions do not pair up; use an even number, at least 2",
    ),
    (
        decoder(s.Latent(4, 0, 4, 4, 4)),
        "spec, decoder.0.mixer.kv_rank: cannot be 0; use at least 1",
    ),
    (
        decoder(s.Latent(4, 6, 4, 4, 4, q_rank=0)),
        "spec, decoder.0.mixer.q_rank: cannot be 0; use at least 1",
    ),
    (
        decoder(s.Latent(4, 6, 4, 4, 4), positions=s.NoPositions()),
        'spec, decoder.0.mixer: latent attention needs rotary positions; use {"kind": "rotary"}',
    ),
    (
        replace(encoder(s.Recurrent()), d_model=15),
        "spec, d_model: two directions cannot share an odd width; use an even one",
    ),
    (encoder(s.Convolution(0)), "spec, encoder.0.mixer.width: cannot be 0; use at least 1"),
    (encoder(s.Pooling(-2)), "spec, encoder.0.mixer.width: cannot be -2; use at least 1"),
    (decoder(ff=s.Dense(0)), "spec, decoder.0.feed_forward.d_ff: cannot be 0; use at least 1"),
    (
        decoder(ff=s.Experts(4, 5, FF)),
        "spec, decoder.0.feed_forward.n_active: 5 of 4 experts; use 1 to 4",
    ),
    (
        decoder(ff=s.Experts(4, 2, s.Gated(0))),
        "spec, decoder.0.feed_forward.each.d_ff: cannot be 0; use at least 1",
    ),
    (
        decoder(ff=s.Experts(4, 2, FF, shared=s.Gated(0))),
        "spec, decoder.0.feed_forward.shared.d_ff: cannot be 0; use at least 1",
    ),
    (
        decoder(ff=s.Experts(4, 2, s.Gated(8, bias=True))),
        "spec, decoder.0.feed_forward.each.bias: routed experts have no biases; use false",
    ),
    (
        decoder(ff=s.Experts(6, 2, FF, n_groups=4)),
        "spec, decoder.0.feed_forward.n_groups: 6 experts do not fall into 4 groups with 1 active; "
        "use a divisor of the experts",
    ),
    (
        decoder(ff=s.Experts(6, 3, FF, n_groups=3)),
        "spec, decoder.0.feed_forward.n_active_groups: 3 active experts do not fit into groups that hold 2; "
        "use more active groups",
    ),
    (
        s.Spec(9, 8, decoder=s.Stack((s.Layer(HEADS, FF, cross=HEADS),))),
        "spec, decoder.0.cross: there is no encoder to look at; use null",
    ),
    (
        s.Spec(9, 8, s.Stack((s.Layer(HEADS, FF),)), s.Stack((s.Layer(HEADS, FF),))),
        "spec, decoder.0.cross: is missing, and there is an encoder; give heads to look at its memory",
    ),
    (
        s.Spec(
            9,
            8,
            s.Stack((s.Layer(HEADS, FF),)),
            s.Stack((s.Layer(HEADS, FF, cross=s.Heads(4, 2, 4, window=3)),)),
        ),
        "spec, decoder.0.cross.window: two sentences have no common places, so no window; use null",
    ),
]


@pytest.mark.parametrize(("spec", "line"), IMPOSSIBLE, ids=[line for _, line in IMPOSSIBLE])
def test_an_impossible_value_is_named_with_its_path_and_remedy(spec, line):
    assert complaint(check, spec) == line
    assert complaint(Transformer, spec) == line
    if "nan" not in line:
        assert complaint(from_json, to_json(spec)) == line.replace("spec", "model.json", 1)


def test_heads_that_look_across_need_no_even_width():
    check(
        s.Spec(
            9,
            8,
            s.Stack((s.Layer(HEADS, FF),)),
            s.Stack((s.Layer(HEADS, FF, cross=s.Heads(2, 1, 5)),), "past"),
        )
    )


def test_all_impossible_values_come_in_one_message():
    spec = replace(decoder(s.Heads(6, 4, 4, window=0)), dropout=2.0)
    assert complaint(check, spec, "a.json") == (
        "a.json, dropout: 2.0 is no share; use 0 <= dropout < 1"
        " | decoder.0.mixer.window: cannot be 0; use at least 1"
        " | decoder.0.mixer: 6 query heads cannot share 4 key/value heads; use 1, 2, 3 or 6"
    )


def test_the_remedy_is_chinese_for_who_reads_chinese():
    set_language("zh")
    try:
        line = complaint(check, decoder(s.Heads(6, 4, 4)))
    finally:
        set_language("en")
    assert line == "spec, decoder.0.mixer: 6 个查询头无法共用 4 个键值头; 请用 1、2、3、6"


def changed(**changes) -> str:
    """The JSON of a small model with values put in at dotted paths; a value of ... deletes."""
    tree = json.loads(to_json(decoder()))
    for path, value in changes.items():
        *way, last = path.split("__")
        part = tree
        for step in way:
            part = part["layers"][int(step)] if step.isdigit() else part[step]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    return json.dumps(tree)


MIXERS = "heads, latent, recurrent, convolution, token_mlp, pooling"
MISWRITTEN = [
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
        changed(decoder__sees="pass"),
        "model.json, decoder.sees: cannot be 'pass'; did you mean 'past'?",
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
        changed(decoder__0__mixer__kind="headz"),
        "model.json, decoder.0.mixer: no kind 'headz'; did you mean 'heads'?",
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
        "model.json, decoder.0.feed_forward: the kind is missing; choose from dense, gated, experts",
    ),
    (
        changed(vocab_sise=9, vocab_size=..., decoder__0__mixer__kind="headz", dropout="much"),
        "model.json, decoder.0.mixer: no kind 'headz'; did you mean 'heads'?"
        " | vocab_size: is missing; write it down"
        " | dropout: cannot be 'much'; use a number"
        " | no field 'vocab_sise'; did you mean 'vocab_size'?",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISWRITTEN, ids=[line for _, line in MISWRITTEN])
def test_a_miswritten_file_is_explained_in_one_line(text, line):
    assert complaint(from_json, text) == line


def test_an_unknown_preset_gets_its_near_miss():
    assert complaint(preset, "paper-bas") == "paper-bas: no such preset; did you mean 'paper-base'?"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.text(max_size=5)
    | st.just("heads"),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "layers", "mixer", "d_ff", "each", "norm", "Heads", "width", "?"]
            ),
            inside,
            max_size=3,
        )
    ),
    max_leaves=6,
)
PLACES = [
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
@given(st.dictionaries(st.sampled_from(PLACES), ANYTHING, min_size=1, max_size=1))
def test_whatever_a_file_says_the_answer_is_a_spec_or_one_line(changes):
    try:
        assert isinstance(from_json(changed(**changes)), s.Spec)
    except QkvError as error:
        assert str(error).startswith("model.json") and "\n" not in str(error).strip()


@settings(max_examples=100, deadline=None)
@given(ANYTHING)
def test_whatever_json_a_file_is_the_answer_is_one_line(tree):
    assert complaint(from_json, json.dumps(tree)).startswith("model.json")
