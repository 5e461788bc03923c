"""The packed steps of an encoder-decoder equal the model's own, through beams, departures and arrivals."""

from dataclasses import replace

import pytest
import torch

from qkv.engine.packed_model import PackedModel, supports
from qkv.engine.stepper import PackedStepper, PlainStepper, make_stepper
from qkv.generate.decode import source_rows
from qkv.model.explained import explained
from qkv.model.presets import encoder_decoder, marian, preset
from qkv.model.spec import Experts, Gated, Heads, Layer, LmHead, Rotary, Spec, Stack
from qkv.model.transformer import Transformer

SMALL = {"layers": 2, "d_model": 32, "d_ff": 48, "dropout": 0.2}
SHAPES = {
    "today's": dict(**SMALL, norm="rms", activation="relu2", qk_norm=True, bias=False),
    "the paper's": dict(**SMALL, place="post", positions="sinusoidal"),
    "gated, learned positions": dict(
        **SMALL, gated=True, activation="silu", positions="learned", max_len=90
    ),
    "gelu without positions": dict(**SMALL, activation="gelu", positions="none", tied=False),
    "gelu by tanh": dict(**SMALL, activation="gelu_tanh"),
}


def grouped() -> Spec:
    heads = Heads(4, 2, 8)
    layer = Layer(heads, Gated(24), repeat=2)
    decoder = Stack((replace(layer, cross=Heads(4, 1, 8, bias=True)),), "past", final_norm=True)
    return Spec(
        60,
        32,
        Stack((layer,), final_norm=True),
        decoder,
        Rotary(share=0.5),
        LmHead(bias=True),
        max_len=90,
    )


SPECS = {
    name: replace(preset("seq2seq", vocab_size=60, **shape), source_vocab_size=50)
    for name, shape in SHAPES.items()
} | {
    "grouped heads, a bias on the logits": grouped(),
    "marian's": replace(
        marian(),
        vocab_size=60,
        d_model=32,
        **{
            side: Stack(
                (
                    replace(
                        stack.layers[0],
                        mixer=Heads(2, 2, 16, bias=True, out_bias=True),
                        repeat=2,
                        cross=Heads(2, 2, 16) if side == "decoder" else None,
                    ),
                ),
                stack.sees,
            )
            for side, stack in (("encoder", marian().encoder), ("decoder", marian().decoder))
        },
    ),
}


def begin(model, source, real=None):
    """The plain and the packed stepper at the first token, and the logits of both."""
    plain, packed = PlainStepper(model), PackedStepper(model)
    return (
        plain,
        packed,
        *(
            stepper.prefill([[2]] * len(source), source_rows(source, real))
            for stepper in (plain, packed)
        ),
    )


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [1, 7, 64, 65])
def test_a_single_sentence_is_read_as_the_model_reads_it(name, length, steps_by):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    source = torch.randint(4, 50, (1, length))
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source)
        assert (packed.packed.native_encoder is not None) == (steps_by == "native")
        for _ in range(5):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
            ids = a.argmax(dim=-1)
            a, b = plain.step(ids), packed.step(ids)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("padded", [False, True])
def test_fast_and_plain_steps_agree_through_beams_and_departures(name, padded, steps_by):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    source = torch.randint(4, 50, (3, 7))
    real = torch.arange(7) < torch.tensor([7, 5, 2])[:, None] if padded else None
    assert supports(model)
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source, real)
        for step in range(80):  # more than the first capacity of the cache
            torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
            ids = a.argmax(dim=-1)
            if step == 2:  # each sentence gets two beams
                ids = reorder_both(plain, packed, ids, [0, 0, 1, 1, 2, 2], 2)
            if step == 5:  # the second sentence leaves, beams and sentences change their order
                ids = reorder_both(plain, packed, ids, [5, 4, 1, 1], 2)
            if step == 8:  # another sentence joins, with two equal beams
                new = plain.join([[2], [2]], [[7, 8, 9]] * 2), packed.join([[2]], [[7, 8, 9]])
                torch.testing.assert_close(new[1], new[0], rtol=0, atol=1e-10)
                ids = torch.cat([ids, torch.tensor([5, 6])])
            if step == 12:  # one beam of each sentence is left
                ids = reorder_both(plain, packed, ids, [1, 2, 5], 1)
            a, b = plain.step(ids), packed.step(ids)


def reorder_both(plain, packed, ids, rows, beams):
    plain.reorder(rows, beams)
    packed.reorder(rows, beams)
    return ids[torch.tensor(rows)]


@pytest.mark.parametrize("name", SPECS)
def test_a_target_may_begin_with_given_tokens(name, steps_by):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    sources, prompts = [[5, 6, 7], [8, 9]], [[2, 11, 12, 13], [2, 14]]
    with torch.inference_mode():
        a, b = (
            stepper.prefill(prompts, sources)
            for stepper in (PlainStepper(model), PackedStepper(model))
        )
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)


def test_float32_steps_agree_to_1e_5(steps_by):
    torch.manual_seed(0)
    model, source = (
        Transformer(encoder_decoder(60, 32, 2, 4, 48)).eval(),
        torch.randint(4, 50, (2, 6)),
    )
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source)
        for _ in range(20):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-5)
            ids = a.argmax(dim=-1)
            a, b = plain.step(ids), packed.step(ids)


def test_joined_weights_follow_the_model_when_it_learns():
    model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).eval()
    first = PackedModel.of(model)
    assert PackedModel.of(model) is first
    with torch.no_grad():
        model.decoder.layers[0].attn.branch.v_proj.weight.add_(1.0)
    second = PackedModel.of(model)
    assert second is not first
    old, new = (fast.decoder.layers[0].qkv(torch.eye(32))[:, 64:] for fast in (first, second))
    torch.testing.assert_close(new, old + 1)


def test_a_model_made_in_inference_mode_steps_as_any_other(steps_by):
    source = torch.randint(4, 50, (2, 6))
    with torch.inference_mode():
        torch.manual_seed(0)
        model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).double().eval()
        assert model.embed.weight.is_inference()
        _, packed, a, b = begin(model, source)
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
        assert PackedModel.of(model) is packed.packed


@pytest.mark.parametrize("length", [2, 64])
def test_a_single_sentence_of_an_encoder_that_sees_the_past_is_read_as_in_company(length, steps_by):
    torch.manual_seed(0)
    spec = SPECS["today's"]
    model = Transformer(replace(spec, encoder=replace(spec.encoder, sees="past"))).double().eval()
    source = torch.randint(4, 50, (2, length))
    with torch.inference_mode():
        _, _, expected, alone = begin(model, source[:1])
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(begin(model, source)[3][:1], expected, rtol=0, atol=1e-10)


def test_rotations_cleared_by_another_thread_are_computed_again():
    class Forgetful(dict):
        """Another thread clears it at the worst moment: after every question."""

        def __contains__(self, key):
            there = super().__contains__(key)
            self.clear()
            return there

    positions = PackedModel(Transformer(grouped()).eval()).decoder.positions
    expected = [positions.rotation(position) for position in (3, 70)]
    positions.rotations = Forgetful(positions.rotations)
    for position, rotation in zip((3, 70), expected, strict=True):
        assert positions.rotation(position).equal(rotation)


def test_other_kinds_of_decoders_take_the_plain_way():
    spec = encoder_decoder(60, 32, 1, 4, 48)
    layer = spec.decoder.layers[0]
    windowed = replace(layer, mixer=replace(layer.mixer, window=4))
    expert = replace(layer, feed_forward=Experts(2, 1, Gated(8)))
    for other in (windowed, expert):
        model = Transformer(replace(spec, decoder=Stack((other,), "past"))).eval()
        assert isinstance(make_stepper(model), PlainStepper)


def test_a_model_that_is_being_explained_takes_the_plain_way():
    model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).eval()
    with explained(model, ["decoder.layers.0.cross.branch.core"]):
        assert isinstance(make_stepper(model), PlainStepper)
    assert isinstance(make_stepper(model), PackedStepper)
