"""The fast step of a language model says what the plain one says, for every decoder it takes on."""

import random
from dataclasses import replace

import pytest
import torch

from qkv.engine import packed_weights
from qkv.engine.packed_model import supports
from qkv.engine.stepper import PackedStepper, PlainStepper
from qkv.errors import QkvError
from qkv.model.explained import explained
from qkv.model.presets import decoder_only
from qkv.model.spec import (
    Convolution,
    Dense,
    Experts,
    Gated,
    Heads,
    Layer,
    Learned,
    LinearScaling,
    LmHead,
    NoPositions,
    Norm,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
)
from qkv.model.transformer import Transformer

VOCAB, WIDTH = 60, 24
GPT2 = Spec(
    VOCAB,
    WIDTH,
    decoder=Stack(
        (
            Layer(
                Heads(3, 3, 8, bias=True, out_bias=True),
                Dense(48, "gelu_tanh", bias=True),
                Norm("layer", "pre"),
                repeat=2,
            ),
        ),
        "past",
        final_norm=True,
    ),
    positions=Learned(),
    max_len=90,
)
LLAMA = decoder_only(VOCAB, WIDTH, 2, Heads(4, 2, 6), Gated(40))
QWEN = decoder_only(VOCAB, WIDTH, 2, Heads(4, 1, 8, qk_norm=True), Gated(40))


def after_a_convolution(stack: Stack, width: int) -> Stack:
    return replace(
        stack, layers=(replace(stack.layers[0], mixer=Convolution(width), repeat=1), *stack.layers)
    )


KNOWN = {
    "gpt2's": GPT2,
    "llama's": LLAMA,
    "qwen's": QWEN,
    "pairs side by side": replace(LLAMA, positions=Rotary(pairs="adjacent")),
    "after a convolution": replace(QWEN, decoder=after_a_convolution(QWEN.decoder, 4)),
    "gpt2's after a convolution": replace(GPT2, decoder=after_a_convolution(GPT2.decoder, 3)),
    "half of each head turned": replace(
        QWEN, positions=Rotary(share=0.5, scaling=LinearScaling(2.0))
    ),
}


def drawn(seed: int) -> Spec:
    """A decoder of the common kind, every choice drawn."""
    pick = random.Random(seed)
    n_kv_heads, d_head = pick.choice([1, 2]), pick.choice([4, 8])
    heads = Heads(
        n_kv_heads * pick.choice([1, 2, 3]),
        n_kv_heads,
        d_head,
        bias=pick.random() < 0.5,
        out_bias=pick.random() < 0.5,
        qk_norm=pick.random() < 0.5,
    )
    activation = pick.choice(["relu", "relu2", "gelu", "gelu_tanh", "silu"])
    wide = pick.choice(
        [
            Dense(20, activation, bias=True),
            Dense(20, activation),
            Gated(20, activation),
            Gated(20, activation, bias=True),
        ]
    )
    norm = Norm(
        pick.choice(["layer", "rms"]), pick.choice(["pre", "post"]), pick.choice([1e-5, 1e-2])
    )
    positions = pick.choice(
        [
            Learned(),
            Learned(first=2),
            Sinusoidal(),
            Sinusoidal("halves"),
            NoPositions(),
            Rotary(),
            Rotary(pairs="adjacent"),
            Rotary(share=0.5),
            Rotary(base=100.0, pairs="adjacent", share=0.5),
        ]
    )
    stack = Stack(
        (Layer(heads, wide, norm, repeat=2),),
        "past",
        final_norm=pick.random() < 0.5,
        embed_norm=pick.random() < 0.5,
    )
    if pick.random() < 0.3:
        stack = after_a_convolution(stack, pick.choice([1, 2, 5]))
    head = LmHead(tied=pick.random() < 0.5, bias=pick.random() < 0.5)
    return Spec(
        VOCAB,
        WIDTH,
        decoder=stack,
        positions=positions,
        head=head,
        scaled_embedding=pick.random() < 0.5,
        max_len=90,
    )


def shaken(spec: Spec) -> Transformer:
    """Random weights, gains and biases too: at their first values a forgotten gain would not be seen."""
    torch.manual_seed(0)
    model = Transformer(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def prompts(*lengths: int) -> list[list[int]]:
    made = torch.Generator().manual_seed(1)
    return [torch.randint(VOCAB, (length,), generator=made).tolist() for length in lengths]


def agree(model: Transformer, given: list[list[int]], atol: float, steps: int = 40) -> None:
    plain, fast = PlainStepper(model), PackedStepper(model)
    with torch.inference_mode():
        a, b = plain.prefill(given), fast.prefill(given)
        for place in range(steps):
            torch.testing.assert_close(b, a, rtol=0, atol=atol)
            ids = a.argmax(dim=1)
            if place == 5:  # rows leave, change places and come twice
                rows = [len(given) - 1, 0, 0]
                plain.reorder(rows)
                fast.reorder(rows)
                ids = ids[rows]
            a, b = plain.step(ids), fast.step(ids)


@pytest.mark.parametrize("lengths", [(9,), (5, 5), (1, 17, 6)], ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_known_decoders_step_as_they_do_themselves(name, lengths, steps_by):
    agree(shaken(KNOWN[name]).double(), prompts(*lengths), 1e-10)


@pytest.mark.parametrize("seed", range(40))
def test_any_common_decoder_steps_as_it_does_itself(seed, steps_by):
    model = shaken(drawn(seed)).double()
    assert supports(model)
    agree(model, prompts(3, 12, 1) if seed % 2 else prompts(7, 7), 1e-10, steps=20)


@pytest.mark.parametrize("name", KNOWN)
def test_float32_steps_agree_to_1e_5(name, steps_by):
    agree(shaken(KNOWN[name]), prompts(4, 9), 1e-5)


def test_a_cache_that_doubles_and_a_second_prompt_change_nothing(steps_by):
    model = shaken(LLAMA).double()
    agree(model, prompts(3), 1e-10, steps=300)
    fast = PackedStepper(model)
    with torch.inference_mode():
        first = fast.prefill(prompts(8)).clone()
        fast.step(torch.tensor([3]))
        fast.prefill(prompts(4, 2))
        assert fast.prefill(prompts(8)).equal(first)


def test_a_full_table_of_positions_is_used_to_its_last_place(steps_by):
    model = shaken(replace(GPT2, max_len=20)).double()
    agree(model, prompts(8, 3), 1e-10, steps=12)


@pytest.mark.parametrize("bias", [True, False])
def test_a_large_matrix_multiplies_one_row_and_many_alike(monkeypatch, bias):
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


def test_other_decoders_are_refused():
    expert = decoder_only(VOCAB, WIDTH, 1, Heads(2, 2, 8), Experts(2, 1, Gated(8)))
    windowed = decoder_only(VOCAB, WIDTH, 1, Heads(2, 2, 8, window=4), Gated(8))
    twice = replace(LLAMA, decoder=after_a_convolution(after_a_convolution(LLAMA.decoder, 2), 2))
    unlike = after_a_convolution(LLAMA.decoder, 2)
    unlike = replace(
        LLAMA,
        decoder=replace(
            unlike, layers=(replace(unlike.layers[0], norm=Norm("layer")), unlike.layers[1])
        ),
    )
    for spec in (expert, windowed, twice, unlike):
        assert not supports(Transformer(spec))
    assert not supports(Transformer(LLAMA).double(), int8=True)
    model = Transformer(LLAMA)
    with explained(model, ["decoder.layers.0.attn.branch.core"]):
        assert not supports(model)
    assert supports(model) and supports(model, int8=True)


def test_positions_beyond_the_table_are_never_read(steps_by):
    model = shaken(replace(GPT2, max_len=20))
    stepper = PackedStepper(model)
    with torch.inference_mode():
        with pytest.raises(AssertionError, match="21 tokens, of at most 20"):
            stepper.prefill(prompts(21, 3))
        stepper.prefill(prompts(20, 3))
        with pytest.raises(AssertionError, match="21 tokens, of at most 20"):
            stepper.step(torch.tensor([1, 2]))


@pytest.mark.native
def test_an_id_beyond_the_vocabulary_is_an_error():
    stepper = PackedStepper(shaken(LLAMA))
    with torch.inference_mode():
        for ids in ([[5, VOCAB]], [[-1]]):
            with pytest.raises(QkvError) as error:
                stepper.prefill(ids)
            assert str(error.value).startswith(
                f"ids: {ids[0][-1]} is out of range; this vocabulary ends at {VOCAB - 1}"
            )
