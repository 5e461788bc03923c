"""Packed decode steps equal the model's own, for every supported decoder."""

import random
from dataclasses import replace

import pytest
import torch

from qkv.engine import packed_weights
from qkv.engine.stepper import PackedStepper, PlainStepper, supports
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.eager_core import eager_attention
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer

VOCAB, WIDTH = 60, 24
GPT2 = s.Spec(
    VOCAB,
    WIDTH,
    decoder=s.Stack(
        (
            s.Layer(
                s.Attention(3, 3, 8, bias=True, out_bias=True),
                s.Dense(48, "gelu_tanh", bias=True),
                s.Norm("layer", "pre"),
                repeat=2,
            ),
        ),
        causal=True,
        final_norm=True,
    ),
    positions=s.Learned(),
    max_len=90,
)
LLAMA = decoder_only(VOCAB, WIDTH, 2, s.Attention(4, 2, 6), s.Gated(40))
QWEN = decoder_only(VOCAB, WIDTH, 2, s.Attention(4, 1, 8, qk_norm=True), s.Gated(40))


def with_convolution(stack: s.Stack, width: int) -> s.Stack:
    return replace(
        stack,
        layers=(replace(stack.layers[0], mixer=s.Convolution(width), repeat=1), *stack.layers),
    )


DECODERS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen": QWEN,
    "interleaved rotary": replace(LLAMA, positions=s.Rotary(interleaved=True)),
    "convolution": replace(QWEN, decoder=with_convolution(QWEN.decoder, 4)),
    "gpt2 with convolution": replace(GPT2, decoder=with_convolution(GPT2.decoder, 3)),
    "partial rotary": replace(
        QWEN, positions=s.Rotary(partial_rotary_factor=0.5, scaling=s.LinearScaling(2.0))
    ),
}


def random_spec(seed: int) -> s.Spec:
    """A supported decoder with random options."""
    rng = random.Random(seed)
    n_kv_heads, d_head = rng.choice([1, 2]), rng.choice([4, 8])
    heads = s.Attention(
        n_kv_heads * rng.choice([1, 2, 3]),
        n_kv_heads,
        d_head,
        bias=rng.random() < 0.5,
        out_bias=rng.random() < 0.5,
        qk_norm=rng.random() < 0.5,
    )
    activation = rng.choice(["relu", "relu2", "gelu", "gelu_tanh", "silu"])
    ffn = rng.choice(
        [
            s.Dense(20, activation, bias=True),
            s.Dense(20, activation),
            s.Gated(20, activation),
            s.Gated(20, activation, bias=True),
        ]
    )
    norm = s.Norm(
        rng.choice(["layer", "rms"]), rng.choice(["pre", "post"]), rng.choice([1e-5, 1e-2])
    )
    positions = rng.choice(
        [
            s.Learned(),
            s.Learned(first=2),
            s.Sinusoidal(),
            s.Sinusoidal("halves"),
            s.NoPositions(),
            s.Rotary(),
            s.Rotary(interleaved=True),
            s.Rotary(partial_rotary_factor=0.5),
            s.Rotary(theta=100.0, interleaved=True, partial_rotary_factor=0.5),
        ]
    )
    stack = s.Stack(
        (s.Layer(heads, ffn, norm, repeat=2),),
        causal=True,
        final_norm=rng.random() < 0.5,
        embed_norm=rng.random() < 0.5,
    )
    if rng.random() < 0.3:
        stack = with_convolution(stack, rng.choice([1, 2, 5]))
    head = s.LmHead(tied=rng.random() < 0.5, bias=rng.random() < 0.5)
    return s.Spec(
        VOCAB,
        WIDTH,
        decoder=stack,
        positions=positions,
        head=head,
        scaled_embedding=rng.random() < 0.5,
        max_len=90,
    )


def random_model(spec: s.Spec) -> Transformer:
    """Random weights, gains and biases: an omitted gain of 1 would not be detected."""
    torch.manual_seed(0)
    model = Transformer(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(VOCAB, (length,), generator=generator).tolist() for length in lengths]


def assert_steps_equal(
    model: Transformer, prompts: list[list[int]], atol: float, steps: int = 40
) -> None:
    plain, packed = PlainStepper(model), PackedStepper(model)
    with torch.inference_mode():
        a, b = plain.prefill(prompts), packed.prefill(prompts)
        for step in range(steps):
            torch.testing.assert_close(b, a, rtol=0, atol=atol)
            ids = a.argmax(dim=1)
            if step == 5:  # rows are dropped, reordered and repeated
                rows = [len(prompts) - 1, 0, 0]
                plain.reorder(rows)
                packed.reorder(rows)
                ids = ids[rows]
            a, b = plain.step(ids), packed.step(ids)


@pytest.mark.parametrize("lengths", [(9,), (5, 5), (1, 17, 6)], ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_packed_steps_equal_plain_steps(name, lengths, step_backend):
    assert_steps_equal(random_model(DECODERS[name]).double(), prompts(*lengths), 1e-10)


@pytest.mark.parametrize("seed", range(40))
def test_packed_steps_of_random_decoders_equal_plain_steps(seed, step_backend):
    model = random_model(random_spec(seed)).double()
    assert supports(model)
    assert_steps_equal(model, prompts(3, 12, 1) if seed % 2 else prompts(7, 7), 1e-10, steps=20)


@pytest.mark.parametrize("name", DECODERS)
def test_float32_steps_agree_to_1e_5(name, step_backend):
    assert_steps_equal(random_model(DECODERS[name]), prompts(4, 9), 1e-5)


def test_growing_the_cache_and_a_second_prefill_change_nothing(step_backend):
    model = random_model(LLAMA).double()
    assert_steps_equal(model, prompts(3), 1e-10, steps=300)
    packed = PackedStepper(model)
    with torch.inference_mode():
        first = packed.prefill(prompts(8)).clone()
        packed.step(torch.tensor([3]))
        packed.prefill(prompts(4, 2))
        assert packed.prefill(prompts(8)).equal(first)


def test_learned_positions_are_used_up_to_the_last(step_backend):
    model = random_model(replace(GPT2, max_len=20)).double()
    assert_steps_equal(model, prompts(8, 3), 1e-10, steps=12)


@pytest.mark.parametrize("bias", [True, False])
def test_large_products_of_one_row_and_of_many_equal_torch(monkeypatch, bias):
    monkeypatch.setattr(packed_weights, "ONEDNN_MIN_WEIGHTS", 1)
    torch.manual_seed(0)
    weight, added, x = torch.randn(50, 24), torch.randn(50) if bias else None, torch.randn(5, 24)
    run = packed_weights.product(weight, added)
    assert isinstance(run, packed_weights.LargeProduct)
    expected = torch.nn.functional.linear(
        x.double(), weight.double(), None if added is None else added.double()
    ).float()
    for rows in (1, 5, 1, 3):
        torch.testing.assert_close(run(x[:rows]), expected[:rows], rtol=1e-5, atol=1e-5)


def test_other_decoders_are_not_supported():
    experts = decoder_only(
        VOCAB, WIDTH, 1, s.Attention(2, 2, 8), s.MixtureOfExperts(2, 1, s.Gated(8))
    )
    windowed = decoder_only(VOCAB, WIDTH, 1, s.Attention(2, 2, 8, window=4), s.Gated(8))
    two_convolutions = replace(
        LLAMA, decoder=with_convolution(with_convolution(LLAMA.decoder, 2), 2)
    )
    convolution, attention = with_convolution(LLAMA.decoder, 2).layers
    layers = replace(convolution, norm=s.Norm("layer")), attention
    unequal_norms = replace(LLAMA, decoder=replace(LLAMA.decoder, layers=layers))
    alibi = replace(LLAMA, positions=s.ALiBi())
    dilated_layer = replace(convolution, mixer=s.Convolution(2, dilation=2))
    dilated = replace(LLAMA, decoder=replace(LLAMA.decoder, layers=(dilated_layer, attention)))
    (layer,) = LLAMA.decoder.layers
    no_residual, no_ffn = (
        replace(LLAMA, decoder=replace(LLAMA.decoder, layers=(replace(layer, **change),)))
        for change in ({"residual": False}, {"feed_forward": None})
    )
    for spec in (
        experts,
        windowed,
        two_convolutions,
        unequal_norms,
        alibi,
        no_residual,
        no_ffn,
        dilated,
    ):
        assert not supports(Transformer(spec))
    assert not supports(Transformer(LLAMA).double(), int8=True)
    model = Transformer(LLAMA)
    with eager_attention(model, ["decoder.layers.0.attn.branch.core"]):
        assert not supports(model)
    assert supports(model) and supports(model, int8=True)


def test_positions_beyond_the_table_raise(step_backend):
    model = random_model(replace(GPT2, max_len=20))
    stepper = PackedStepper(model)
    with torch.inference_mode():
        with pytest.raises(AssertionError, match="21 tokens, of at most 20"):
            stepper.prefill(prompts(21, 3))
        stepper.prefill(prompts(20, 3))
        with pytest.raises(AssertionError, match="21 tokens, of at most 20"):
            stepper.step(torch.tensor([1, 2]))


@pytest.mark.native
def test_an_id_outside_the_vocabulary_raises():
    stepper = PackedStepper(random_model(LLAMA))
    with torch.inference_mode():
        for ids in ([[5, VOCAB]], [[-1]]):
            with pytest.raises(QkvError) as error:
                stepper.prefill(ids)
            assert str(error.value).startswith(
                f"ids: {ids[0][-1]} is out of range; this vocabulary ends at {VOCAB - 1}"
            )
