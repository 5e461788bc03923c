"""Every invalid value of a spec gets a one-line error with its path and the remedy."""

from dataclasses import replace

import pytest
from small_models import both, decoder, encoder

from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.model import spec as s
from qkv.model.check_spec import check_spec
from qkv.model.spec_io import from_json, to_json
from qkv.model.transformer import Transformer


def error_of(run, *arguments) -> str:
    with pytest.raises(QkvError) as caught:
        run(*arguments)
    return str(caught.value)


# Every error for a value that has the right type but gives no valid model.
HEADS, FF = s.Attention(4, 2, 4), s.Gated(20)
LLAMA, YARN = s.LlamaScaling(8.0, 1.0, 4.0, 64), s.YarnScaling(4.0, 64)
INVALID = [
    (replace(decoder(), vocab_size=0), "spec, vocab_size: cannot be 0; use at least 1"),
    (replace(decoder(), d_model=-4), "spec, d_model: cannot be -4; use at least 1"),
    (replace(decoder(), max_len=0), "spec, max_len: cannot be 0; use at least 1"),
    (replace(decoder(), token_types=-1), "spec, token_types: cannot be -1; use at least 0"),
    (
        replace(decoder(), dropout=1.0),
        "spec, dropout: 1.0 is not a probability; use 0 <= dropout < 1",
    ),
    (
        replace(decoder(), dropout=float("nan")),
        "spec, dropout: nan is not a probability; use 0 <= dropout < 1",
    ),
    (
        replace(decoder(), d_model=15, positions=s.Sinusoidal()),
        "spec, d_model: 15 is odd; sines and cosines come in pairs; use 16",
    ),
    (
        replace(decoder(), source_vocab_size=9),
        "spec, source_vocab_size: only an encoder-decoder model has a source vocabulary; use null",
    ),
    (both(source_vocab_size=0), "spec, source_vocab_size: cannot be 0; use at least 1"),
    (s.Spec(9, 8), "spec: neither an encoder nor a decoder; give an encoder, a decoder or both"),
    (s.Spec(9, 8, decoder=s.Stack(())), "spec, decoder.layers: is empty; give at least one layer"),
    (
        decoder(s.Attention(4, 2, 4, dropout=1.0)),
        "spec, decoder.0.mixer.dropout: 1.0 is not a probability; use 0 <= dropout < 1",
    ),
    (
        decoder(s.Convolution(3, dilation=0)),
        "spec, decoder.0.mixer.dilation: cannot be 0; use at least 1",
    ),
    (decoder(positions=s.Learned(first=-1)), "spec, positions.first: cannot be -1; use at least 0"),
    (
        decoder(positions=s.Rotary(partial_rotary_factor=1.5)),
        "spec, positions.partial_rotary_factor: 1.5 is not a fraction; "
        "use more than 0 and at most 1",
    ),
    (
        decoder(positions=s.Rotary(theta=1.0)),
        "spec, positions.theta: cannot be 1.0; use more than 1",
    ),
    (
        decoder(positions=s.Rotary(scaling=s.LinearScaling(0.0))),
        "spec, positions.scaling.factor: cannot be 0.0; use more than 0",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(LLAMA, original_max_len=0))),
        "spec, positions.scaling.original_max_len: cannot be 0; use at least 1",
    ),
    (
        decoder(positions=s.Rotary(scaling=replace(LLAMA, high_freq_factor=1.0))),
        "spec, positions.scaling.high_freq_factor: cannot be 1.0; use more than 1.0",
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
        s.Spec(
            9,
            8,
            decoder=s.Stack((s.Layer(HEADS, FF), s.Layer(s.Attention(2, 2, 8), FF)), causal=True),
        ),
        "spec, decoder.layers: RoPE rotates different numbers of dimensions: [4, 8]; "
        "use one number in all layers of a stack",
    ),
    (
        s.Spec(9, 8, decoder=s.Stack((s.Layer(HEADS, FF, repeat=0),))),
        "spec, decoder.0.repeat: cannot be 0; use at least 1",
    ),
    (decoder(norm=s.Norm(eps=-1e-5)), "spec, decoder.0.norm.eps: cannot be -1e-05; use at least 0"),
    (
        decoder(s.Attention(6, 4, 4)),
        "spec, decoder.0.mixer: 6 query heads cannot share 4 key/value heads; use 1, 2, 3 or 6",
    ),
    (decoder(s.Attention(0, 1, 4)), "spec, decoder.0.mixer.n_heads: cannot be 0; use at least 1"),
    (
        decoder(s.Attention(4, 0, 4)),
        "spec, decoder.0.mixer.n_kv_heads: cannot be 0; use at least 1",
    ),
    (decoder(s.Attention(4, 4, -4)), "spec, decoder.0.mixer.d_head: cannot be -4; use at least 1"),
    (
        decoder(s.Attention(4, 4, 4, window=0)),
        "spec, decoder.0.mixer.window: cannot be 0; use at least 1",
    ),
    (
        decoder(s.Attention(4, 4, 5)),
        "spec, decoder.0.mixer: 5 rotated dimensions cannot be paired; "
        "use an even number, at least 2",
    ),
    (
        decoder(positions=s.Rotary(partial_rotary_factor=0.2)),
        "spec, decoder.0.mixer: 0 rotated dimensions cannot be paired; "
        "use an even number, at least 2",
    ),
    (
        decoder(s.LatentAttention(4, 0, 4, 4, 4)),
        "spec, decoder.0.mixer.kv_lora_rank: cannot be 0; use at least 1",
    ),
    (
        decoder(s.LatentAttention(4, 6, 4, 4, 4, q_lora_rank=0)),
        "spec, decoder.0.mixer.q_lora_rank: cannot be 0; use at least 1",
    ),
    (
        decoder(s.LatentAttention(4, 6, 4, 4, 4), positions=s.NoPositions()),
        'spec, decoder.0.mixer: latent attention needs rotary positions; use {"kind": "rotary"}',
    ),
    (
        replace(encoder(s.Recurrent()), d_model=15),
        "spec, d_model: a bidirectional RNN cannot split an odd width in two; use an even number",
    ),
    (encoder(s.Convolution(0)), "spec, encoder.0.mixer.width: cannot be 0; use at least 1"),
    (encoder(s.Pooling(-2)), "spec, encoder.0.mixer.width: cannot be -2; use at least 1"),
    (decoder(ff=s.Dense(0)), "spec, decoder.0.feed_forward.d_ff: cannot be 0; use at least 1"),
    (
        decoder(ff=s.MixtureOfExperts(4, 5, FF)),
        "spec, decoder.0.feed_forward.n_experts_per_token: 5 of 4 experts; use 1 to 4",
    ),
    (
        decoder(ff=s.MixtureOfExperts(4, 2, s.Gated(0))),
        "spec, decoder.0.feed_forward.expert.d_ff: cannot be 0; use at least 1",
    ),
    (
        decoder(ff=s.MixtureOfExperts(4, 2, FF, shared_expert=s.Gated(0))),
        "spec, decoder.0.feed_forward.shared_expert.d_ff: cannot be 0; use at least 1",
    ),
    (
        decoder(ff=s.MixtureOfExperts(4, 2, s.Gated(8, bias=True))),
        "spec, decoder.0.feed_forward.expert.bias: routed experts have no biases; use false",
    ),
    (
        decoder(ff=s.MixtureOfExperts(6, 2, FF, n_groups=4)),
        "spec, decoder.0.feed_forward.n_groups: 6 experts cannot form 4 groups with 1 active; "
        "use a divisor of the number of experts",
    ),
    (
        decoder(ff=s.MixtureOfExperts(6, 3, FF, n_groups=3)),
        "spec, decoder.0.feed_forward.n_active_groups: the active groups have 2 experts, 3 are "
        "needed; "
        "use more active groups",
    ),
    (
        s.Spec(9, 8, decoder=s.Stack((s.Layer(HEADS, FF, cross=HEADS),))),
        "spec, decoder.0.cross: cross-attention needs an encoder; use null",
    ),
    (
        s.Spec(9, 8, s.Stack((s.Layer(HEADS, FF),)), s.Stack((s.Layer(HEADS, FF),))),
        "spec, decoder.0.cross: is missing, and there is an encoder; "
        "give the cross-attention to its memory",
    ),
    (
        s.Spec(
            9,
            8,
            s.Stack((s.Layer(HEADS, FF),)),
            s.Stack((s.Layer(HEADS, FF, cross=s.Attention(4, 2, 4, window=3)),)),
        ),
        "spec, decoder.0.cross.window: positions of source and target are unrelated, so there is "
        "no window; use null",
    ),
]


@pytest.mark.parametrize(("spec", "line"), INVALID, ids=[line for _, line in INVALID])
def test_an_invalid_value_is_named_with_its_path_and_remedy(spec, line):
    assert error_of(check_spec, spec) == line
    assert error_of(Transformer, spec) == line
    if "nan" not in line:
        assert error_of(from_json, to_json(spec)) == line.replace("spec", "model.json", 1)


def test_cross_attention_needs_no_even_width():
    check_spec(
        s.Spec(
            9,
            8,
            s.Stack((s.Layer(HEADS, FF),)),
            s.Stack((s.Layer(HEADS, FF, cross=s.Attention(2, 1, 5)),), causal=True),
        )
    )


def test_all_invalid_values_are_in_one_message():
    spec = replace(decoder(s.Attention(6, 4, 4, window=0)), dropout=2.0)
    assert error_of(check_spec, spec, "a.json") == (
        "a.json, dropout: 2.0 is not a probability; use 0 <= dropout < 1"
        " | decoder.0.mixer.window: cannot be 0; use at least 1"
        " | decoder.0.mixer: 6 query heads cannot share 4 key/value heads; use 1, 2, 3 or 6"
    )


def test_errors_are_translated():
    set_language("zh")
    try:
        line = error_of(check_spec, decoder(s.Attention(6, 4, 4)))
    finally:
        set_language("en")
    assert line == "spec, decoder.0.mixer: 6 个查询头无法共用 4 个键值头; 请用 1、2、3、6"
