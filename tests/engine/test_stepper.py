"""Packed steps of an encoder-decoder equal the model's own, also with beams and changing rows."""

from dataclasses import replace

import pytest
import torch
from tiny_translators import repacked, tiny_marian, unpadded

from qkv.engine.packed_model import PackedModel
from qkv.engine.stepper import PackedStepper, PlainStepper, make_stepper, supports
from qkv.model.eager_core import eager_attention
from qkv.model.presets import encoder_decoder, preset
from qkv.model.spec import Attention, Gated, Layer, LmHead, MixtureOfExperts, Rotary, Spec, Stack
from qkv.model.transformer import Transformer

SMALL = {"layers": 2, "d_model": 32, "d_ff": 48, "dropout": 0.2}
SHAPES = {
    "modern": dict(**SMALL, norm="rms", activation="relu2", qk_norm=True, bias=False),
    "2017 paper": dict(**SMALL, placement="post", positions="sinusoidal"),
    "gated, learned positions": dict(
        **SMALL, gated=True, activation="silu", positions="learned", max_len=90
    ),
    "gelu without positions": dict(**SMALL, activation="gelu", positions="none", tied=False),
    "gelu_tanh": dict(**SMALL, activation="gelu_tanh"),
}


def grouped() -> Spec:
    heads = Attention(4, 2, 8)
    layer = Layer(heads, Gated(24), repeat=2)
    decoder = Stack(
        (replace(layer, cross=Attention(4, 1, 8, bias=True)),), causal=True, final_norm=True
    )
    return Spec(
        60,
        32,
        Stack((layer,), final_norm=True),
        decoder,
        Rotary(partial_rotary_factor=0.5),
        LmHead(bias=True),
        max_len=90,
    )


SPECS = {
    name: replace(preset("seq2seq", vocab_size=60, **shape), source_vocab_size=50)
    for name, shape in SHAPES.items()
} | {"grouped heads, output bias": grouped(), "marian": tiny_marian(Attention(2, 2, 16))}


def begin(model, source, attention_mask=None):
    """The plain and the packed stepper after prefill, and the logits of both."""
    plain, packed = PlainStepper(model), PackedStepper(model)
    return (
        plain,
        packed,
        *(
            stepper.prefill([[2]] * len(source), unpadded(source, attention_mask))
            for stepper in (plain, packed)
        ),
    )


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("length", [1, 7, 64, 65])
def test_a_single_sentence_equals_the_plain_model(name, length, step_backend):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    source = torch.randint(4, 50, (1, length))
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source)
        assert (packed.packed.native_encoder is not None) == (step_backend == "native")
        for _ in range(5):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
            ids = a.argmax(dim=-1)
            a, b = plain.step(ids), packed.step(ids)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("padded", [False, True])
def test_packed_and_plain_steps_are_equal_with_beams_and_changing_rows(name, padded, step_backend):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    source = torch.randint(4, 50, (3, 7))
    attention_mask = torch.arange(7) < torch.tensor([7, 5, 2])[:, None] if padded else None
    assert supports(model)
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source, attention_mask)
        for step in range(80):  # more than the initial capacity of the cache
            torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
            ids = a.argmax(dim=-1)
            if step == 2:  # each sentence gets two beams
                ids = reorder_both(plain, packed, ids, [0, 0, 1, 1, 2, 2], 2)
            if step == 5:  # the second sentence is dropped, beams and sentences are reordered
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
def test_targets_may_have_prefixes(name, step_backend):
    torch.manual_seed(0)
    model = Transformer(SPECS[name]).double().eval()
    sources, prompts = [[5, 6, 7], [8, 9]], [[2, 11, 12, 13], [2, 14]]
    with torch.inference_mode():
        a, b = (
            stepper.prefill(prompts, sources)
            for stepper in (PlainStepper(model), PackedStepper(model))
        )
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)


def test_float32_steps_agree_to_1e_5(step_backend):
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(60, 32, 2, 4, 48)).eval()
    source = torch.randint(4, 50, (2, 6))
    with torch.inference_mode():
        plain, packed, a, b = begin(model, source)
        for _ in range(20):
            torch.testing.assert_close(b, a, rtol=0, atol=1e-5)
            ids = a.argmax(dim=-1)
            a, b = plain.step(ids), packed.step(ids)


def test_weights_are_packed_again_when_the_model_changes():
    model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).eval()
    pair = repacked(PackedModel, model, model.decoder.layers[0].attn.branch.v_proj.weight)
    old, new = (packed.decoder.layers[0].qkv(torch.eye(32))[:, 64:] for packed in pair)
    torch.testing.assert_close(new, old + 1)


def test_a_model_built_in_inference_mode_is_supported(step_backend):
    source = torch.randint(4, 50, (2, 6))
    with torch.inference_mode():
        torch.manual_seed(0)
        model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).double().eval()
        assert model.embed.weight.is_inference()
        _, packed, a, b = begin(model, source)
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)
        assert PackedModel.of(model) is packed.packed


@pytest.mark.parametrize("length", [2, 64])
def test_a_causal_encoder_is_batch_invariant(length, step_backend):
    torch.manual_seed(0)
    spec = SPECS["modern"]
    model = Transformer(replace(spec, encoder=replace(spec.encoder, causal=True))).double().eval()
    source = torch.randint(4, 50, (2, length))
    with torch.inference_mode():
        _, _, expected, alone = begin(model, source[:1])
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(begin(model, source)[3][:1], expected, rtol=0, atol=1e-10)


def test_rotations_cleared_by_another_thread_are_computed_again():
    class ClearedDict(dict):
        """Cleared after every lookup, as by another thread."""

        def __contains__(self, key):
            found = super().__contains__(key)
            self.clear()
            return found

    positions = PackedModel(Transformer(grouped()).eval()).decoder.positions
    expected = [positions.rotation(position) for position in (3, 70)]
    positions.rotations = ClearedDict(positions.rotations)
    for position, rotation in zip((3, 70), expected, strict=True):
        assert positions.rotation(position).equal(rotation)


def test_unsupported_decoders_use_the_plain_stepper():
    spec = encoder_decoder(60, 32, 1, 4, 48)
    layer = spec.decoder.layers[0]
    windowed = replace(layer, mixer=replace(layer.mixer, window=4))
    experts = replace(layer, feed_forward=MixtureOfExperts(2, 1, Gated(8)))
    for other in (windowed, experts):
        model = Transformer(replace(spec, decoder=Stack((other,), causal=True))).eval()
        assert isinstance(make_stepper(model), PlainStepper)


def test_a_recorded_model_uses_the_plain_stepper():
    model = Transformer(encoder_decoder(60, 32, 1, 4, 48)).eval()
    with eager_attention(model, ["decoder.layers.0.cross.branch.core"]):
        assert isinstance(make_stepper(model), PlainStepper)
    assert isinstance(make_stepper(model), PackedStepper)
