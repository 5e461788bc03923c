"""The `model` option: a preset, its arguments, and overrides of every field of the spec."""

import inspect
import itertools
import json
from dataclasses import replace

import pytest

from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model import spec as s
from qkv.model.model_option import arguments_of, build_spec, complete_option
from qkv.model.presets import PRESETS, from_sizes, preset
from qkv.model.spec_io import to_json


def built(**option):
    return build_spec(complete_option(option, "seq2seq"))


def error_of(**option):
    with pytest.raises(QkvError) as error:
        built(**option)
    return str(error.value)


def first(stack, **changes):
    """The stack with its first layer changed."""
    return replace(stack, layers=(replace(stack.layers[0], **changes), *stack.layers[1:]))


LLAMA = preset("llama")
LATENT = {
    "kind": "latent_attention",
    "n_heads": 2,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
}
OVERRIDES = {
    "multi-query attention": (
        {"decoder.layers.0.mixer.n_kv_heads": 1},
        {"mixer": replace(LLAMA.decoder.layers[0].mixer, n_kv_heads=1)},
    ),
    "a window": (
        {"decoder.layers.0.mixer.window": 64},
        {"mixer": replace(LLAMA.decoder.layers[0].mixer, window=64)},
    ),
    "latent attention": (
        {"decoder.layers.0.mixer": LATENT},
        {"mixer": s.LatentAttention(2, 8, 4, 4, 4)},
    ),
    "recurrent by name": ({"decoder.layers.0.mixer": "recurrent"}, {"mixer": s.Recurrent()}),
    "recurrent by kind": (
        {"decoder.layers.0.mixer.kind": "recurrent", "decoder.layers.0.mixer.cell": "gru"},
        {"mixer": s.Recurrent("gru")},
    ),
    "a kind keeps the fields it shares": (
        {"decoder.layers.0.feed_forward.kind": "dense"},
        {"feed_forward": s.Dense(768, "silu")},
    ),
    "experts": (
        {
            "decoder.layers.0.feed_forward": {
                "kind": "mixture_of_experts",
                "n_experts": 4,
                "n_experts_per_token": 2,
                "expert": {"kind": "gated", "d_ff": 9},
            }
        },
        {"feed_forward": s.MixtureOfExperts(4, 2, s.Gated(9))},
    ),
    "an activation": (
        {"decoder.layers.0.feed_forward.activation": "relu2"},
        {"feed_forward": s.Gated(768, "relu2")},
    ),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_a_path_replaces_the_value_there(name):
    overrides, changes = OVERRIDES[name]
    assert built(preset="llama", **overrides) == replace(
        LLAMA, decoder=first(LLAMA.decoder, **changes)
    )


def test_rotary_scaling_a_head_and_plain_fields():
    spec = built(
        preset="llama",
        **{
            "positions.theta": "5e5",
            "positions.scaling.kind": "linear",
            "positions.scaling.factor": 4,
        },
    )
    assert spec == replace(LLAMA, positions=s.Rotary(500_000.0, scaling=s.LinearScaling(4.0)))
    assert built(
        preset="llama", dropout=0.25, max_len=99, head={"kind": "lm", "tied": False}
    ) == replace(LLAMA, dropout=0.25, max_len=99, head=s.LmHead(tied=False))
    assert built(preset="bert", head=None).head is None


def test_the_order_of_the_keys_does_not_matter():
    keys = {
        "decoder.layers": [
            {"mixer": {"kind": "pooling", "width": 3}, "feed_forward": {"kind": "dense", "d_ff": 8}}
        ],
        "decoder.layers.0.mixer.width": 5,
        "decoder.layers.0.mixer.kind": "convolution",
        "layers": 3,
    }
    specs = [
        built(preset="causal-lm", **dict(order)) for order in itertools.permutations(keys.items())
    ]
    assert all(spec == specs[0] for spec in specs)
    assert specs[0].decoder.layers == (s.Layer(s.Convolution(5), s.Dense(8)),)


def test_an_object_under_the_name_of_an_argument_replaces_it():
    assert built(positions="learned").positions == s.Learned()
    assert built(positions={"kind": "rotary", "theta": "1e6"}).positions == s.Rotary(1e6)
    # tiny has no such argument: the string is the kind of the field's object
    assert built(preset="tiny", positions="rotary").positions == s.Rotary()


def test_a_model_json_takes_overrides_too(tmp_path):
    (tmp_path / "model.json").write_text(to_json(LLAMA))
    name = str(tmp_path / "model.json")
    assert built(preset=name) == build_spec(complete_option(name, "seq2seq")) == LLAMA
    assert built(preset=name, dropout=0.5) == replace(LLAMA, dropout=0.5)
    assert error_of(preset=name, layers=2) == (
        f"model: '{name}' has no argument 'layers', and a spec has no such field; choose from "
        "vocab_size, d_model, encoder, decoder, positions, head, source_vocab_size, "
        "scaled_embedding, token_types, max_len, dropout"
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_completed_option_is_complete_and_builds_the_preset(name):
    option = complete_option(name, "seq2seq")
    assert complete_option(option, "seq2seq") == option == json.loads(json.dumps(option))
    assert build_spec(option) == preset(name)
    assert {key for key in arguments_of(name) if key != "vocab_size"} >= option.keys() - {"preset"}


@pytest.mark.parametrize("name", PRESETS)
def test_arguments_of_a_preset_have_types_and_defaults_and_change_the_spec(name):
    for key, parameter in arguments_of(name).items():
        assert (
            parameter.annotation is not inspect.Parameter.empty
            and parameter.default is not inspect.Parameter.empty
        )
        if key in ("layers", "d_ff", "vocab_size"):
            assert preset(name, **{key: parameter.default + 1}) != preset(name)


def test_arguments_reach_every_size_and_choice():
    chosen = {
        "layers": 3,
        "d_model": 48,
        "n_heads": 6,
        "d_ff": 96,
        "dropout": 0.2,
        "norm": "rms",
        "placement": "post",
        "positions": "learned",
        "activation": "silu",
        "gated": True,
        "bias": False,
        "convolution": 5,
        "qk_norm": True,
        "tied": False,
        "max_len": 77,
    }
    spec = built(**chosen)
    assert spec == from_sizes("encoder-decoder", **chosen)
    assert spec.encoder.layers[0].mixer == s.Convolution(5) and spec.encoder.layers[1].repeat == 2
    assert spec.encoder.layers[1] == s.Layer(
        s.Attention(6, 6, 8, qk_norm=True), s.Gated(96, "silu"), s.Norm("rms", "post"), repeat=2
    )


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ({"preset": "tinny"}, "tinny: no such preset; did you mean 'tiny'?"),
        (
            {"preset": "tiny", "layer": 2},
            "model: 'tiny' has no argument 'layer', and a spec has no such field; "
            "did you mean 'layers'?",
        ),
        (
            {"preset": "tiny", "zzz": 2},
            "model: 'tiny' has no argument 'zzz', and a spec has no such field; "
            "choose from vocab_size, "
            "d_model, layers, n_heads, d_ff, dropout, encoder, decoder, positions, head, "
            "source_vocab_size, "
            "scaled_embedding, token_types, max_len",
        ),
        ({"preset": "tiny", "layers": 2.5}, "model, layers: cannot be 2.5; use a whole number"),
        ({"preset": "tiny", "layers": 0}, "model, layers: cannot be 0; use 1 to 4,096"),
        (
            {"convolution": -1, "norm": "rsm"},
            "model, convolution: cannot be -1; use 0 to 1,048,576 | norm: cannot be 'rsm'; "
            "did you mean 'rms'?",
        ),
        (
            {"preset": "tiny", "n_heads": 3},
            "model.n_heads: 128 does not divide into 3 heads; use 1, 2, 4, 8",
        ),
        (
            {"decodr.layers.0.repeat": 2},
            "model: 'seq2seq' has no argument 'decodr.layers.0.repeat', and a spec has no such "
            "field; "
            "did you mean 'decoder'?",
        ),
        (
            {"decoder.layer.0.repeat": 2},
            "model: the spec has no 'decoder.layer'; did you mean 'layers'?",
        ),
        (
            {"decoder.layers.1.repeat": 2},
            "model: the spec has no 'decoder.layers.1'; choose from 0",
        ),
        (
            {"decoder.layers.0.mixer.n_kv_head": 2},
            "model, decoder.0.mixer: no field 'n_kv_head'; did you mean 'n_kv_heads'?",
        ),
        (
            {"decoder.layers.0.mixer.n_kv_heads": 3},
            "model, decoder.0.mixer: 4 query heads cannot share 3 key/value heads; use 1, 2 or 4",
        ),
        (
            {"decoder.layers.0.mixer.window": "wide"},
            "model, decoder.0.mixer.window: cannot be 'wide'; use a whole number",
        ),
        (
            {"decoder.layers.0.mixer.kind": "convolutoin"},
            "model, decoder.0.mixer: no kind 'convolutoin'; did you mean 'convolution'?",
        ),
        (
            {"decoder.layers.0.mixer.kind": "convolution"},
            "model, decoder.0.mixer.width: is missing; write it down",
        ),
        (
            {"preset": "llama", "encoder.layers.0.repeat": 2},
            "model: encoder is null; give encoder as a whole object",
        ),
        (
            {"preset": "llama", "positions.scaling.factor": 2},
            "model, positions.scaling: the kind is missing; choose from linear, llama3, yarn",
        ),
        ({"max_len.x": 1}, "model: max_len is 512; give max_len as a whole object"),
    ],
)
def test_a_wrong_option_gets_one_line(option, line):
    assert error_of(**option) == line


def test_errors_are_translated():
    set_language("zh")
    try:
        assert (
            error_of(preset="tiny", layer=2)
            == "model: 'tiny' 没有参数 'layer'，spec 也没有这个字段; 是不是想写 'layers'？"
        )
        assert (
            error_of(**{"decoder.layer.0.repeat": 2})
            == "model: spec 中没有 'decoder.layer'; 是不是想写 'layers'？"
        )
    finally:
        set_language("en")


def test_old_names_of_presets_are_read_in_options_only():
    assert complete_option("writer-10m", "seq2seq") == complete_option(
        {"preset": "lm-10m"}, "seq2seq"
    )
    with pytest.raises(QkvError, match=r"^writer-10m: no such preset; did you mean 'lm-10m'\?$"):
        preset("writer-10m")
