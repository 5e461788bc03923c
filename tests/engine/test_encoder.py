"""The packed encoder equals the model's own; unsupported encoders use the plain one."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch
from tiny_translators import repacked, tiny_marian
from torch import Tensor

from qkv.engine.encoder import (
    PackedEncoder,
    PlainEncoder,
    length_groups,
    make_encoder,
    supports_encoder,
)
from qkv.errors import QkvError
from qkv.model.eager_core import eager_attention
from qkv.model.presets import bert, encoder_only
from qkv.model.spec import (
    ALiBi,
    Attention,
    Convolution,
    Dense,
    Gated,
    Layer,
    Learned,
    LmHead,
    MixtureOfExperts,
    NoPositions,
    Norm,
    Pooler,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
)
from qkv.model.transformer import Memory, Transformer

HEADS = Attention(4, 4, 8)


def encode(model: Transformer, ids: Tensor, attention_mask: Tensor | None = None) -> Memory:
    """As model.encode: (batch, source) ids -> memory; states of padding are zeros."""
    encoder = make_encoder(model)
    if attention_mask is None or bool(attention_mask.all()):
        states = encoder(ids.flatten(), [(len(ids), ids.shape[1])])
        return Memory(states.view(*ids.shape, -1), attention_mask)
    lengths = attention_mask.sum(dim=1)
    order = lengths.argsort()
    sorted_mask = attention_mask[order]
    groups = length_groups(lengths[order].tolist())
    states = encoder(ids[order][sorted_mask], groups)  # (tokens, d_model)
    padded = states.new_zeros(*ids.shape, states.shape[1])
    rows = order[:, None].expand_as(attention_mask)[sorted_mask]
    padded[rows, sorted_mask.nonzero()[:, 1]] = states
    return Memory(padded, attention_mask)


def spec(layer: Layer, **options) -> Spec:
    return Spec(
        60,
        32,
        Stack((layer,), **{"final_norm": True, **options.pop("stack", {})}),
        **{"max_len": 90, **options},
    )


SPECS = {
    "modern": spec(Layer(replace(HEADS, qk_norm=True), Dense(48, "relu2"), Norm("rms"), repeat=2)),
    "2017 paper": spec(
        Layer(HEADS, Dense(48), Norm(placement="post"), repeat=2),
        positions=Sinusoidal(),
        scaled_embedding=True,
    ),
    "grouped, gated, partial rotary": spec(
        Layer(Attention(4, 2, 8), Gated(24), repeat=2), positions=Rotary(partial_rotary_factor=0.5)
    ),
    "interleaved rotary": spec(
        Layer(HEADS, Dense(48, "silu"), repeat=2), positions=Rotary(interleaved=True)
    ),
    "no positions": spec(
        Layer(HEADS, Dense(48, "gelu"), repeat=2), positions=NoPositions(), scaled_embedding=True
    ),
    "batch norm": spec(Layer(HEADS, Dense(48), Norm("batch"), repeat=2)),
    "two layer types": replace(
        spec(Layer(HEADS, Dense(48))),
        encoder=Stack(
            (Layer(HEADS, Dense(48)), Layer(Attention(2, 1, 8), Gated(24), Norm("rms", "post")))
        ),
    ),
    "learned positions from 2, token types": spec(
        Layer(
            replace(HEADS, bias=True, out_bias=True),
            Dense(48, "gelu", bias=True),
            Norm(placement="post", eps=1e-12),
        ),
        positions=Learned(2),
        token_types=2,
        head=Pooler(),
        stack={"final_norm": False, "embed_norm": True},
    ),
    "marian": tiny_marian(HEADS),
}
LENGTHS = [70, 5, 3, 3, 1, 70]  # more than INITIAL_POSITIONS, repeated, and a single token


def random_model(shape: Spec) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(shape).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def padded(left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    attention_mask = torch.arange(70) < torch.tensor(LENGTHS)[:, None]
    return torch.randint(4, 50, (6, 70)), attention_mask.flip(1) if left else attention_mask


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("left", [False, True])
@torch.inference_mode()
def test_padded_rows_equal_the_model(name, left):
    model, (ids, attention_mask) = random_model(SPECS[name]), padded(left)
    assert isinstance(make_encoder(model), PackedEncoder)
    memory = encode(model, ids, attention_mask)
    expected = model.encode(ids, attention_mask).states[attention_mask]
    torch.testing.assert_close(memory.states[attention_mask], expected, rtol=0, atol=1e-10)
    assert memory.attention_mask is attention_mask and not memory.states[~attention_mask].any()
    torch.testing.assert_close(
        encode(model, ids).states, model.encode(ids).states, rtol=0, atol=1e-10
    )


@torch.inference_mode()
def test_the_plain_encoder_equals_single_sentences_for_any_architecture():
    layer = Layer(HEADS, Dense(48), repeat=2)
    for other in (
        replace(layer, mixer=replace(HEADS, window=3)),
        replace(layer, mixer=Convolution(3)),
        replace(layer, feed_forward=MixtureOfExperts(2, 1, Gated(8))),
    ):
        model, (ids, attention_mask) = random_model(spec(other)), padded(left=False)
        assert isinstance(make_encoder(model), PlainEncoder)
        rows = [row[tokens] for row, tokens in zip(ids, attention_mask, strict=True)]
        expected = torch.cat([model.encode(row[None]).states[0] for row in rows])
        found = encode(model, ids, attention_mask).states[attention_mask]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "gelu_tanh", "silu"])
def test_float32_agrees_to_1e_5(activation, bias):
    small = bert()
    layer = replace(
        small.encoder.layers[0],
        mixer=replace(HEADS, bias=True, out_bias=True),
        repeat=2,
        feed_forward=Dense(48, activation, bias=bias),
    )
    model = Transformer(
        replace(small, vocab_size=60, d_model=32, encoder=replace(small.encoder, layers=(layer,)))
    ).eval()
    ids, attention_mask = padded(left=False)
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, ids, attention_mask).states[attention_mask],
            model.encode(ids, attention_mask).states[attention_mask],
            rtol=0,
            atol=1e-5,
        )


def test_weights_are_packed_again_when_the_model_changes():
    model = Transformer(encoder_only(60, 32, 1, 4, 48)).eval()
    repacked(PackedEncoder, model, model.encoder.layers[0].ffn.branch.up_proj.weight)
    ids = torch.tensor([[5, 7, 9]])
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, ids).states, model.encode(ids).states, rtol=0, atol=1e-5
        )


def test_a_recorded_model_uses_the_plain_encoder():
    model = Transformer(encoder_only(60, 32, 1, 4, 48)).eval()
    with eager_attention(model, ["encoder.layers.0.attn.branch.core"]):
        assert not supports_encoder(model)
    assert supports_encoder(model)


def test_adjacent_sentences_of_equal_length_are_grouped():
    assert length_groups([2, 2, 5]) == [(2, 2), (1, 5)]
    assert length_groups([0, 0, 1]) == [(1, 1)] and length_groups([]) == []


def test_a_model_with_alibi_uses_the_plain_encoder():
    spec = replace(encoder_only(60, 32, 1, 4, 48), positions=ALiBi())
    assert not supports_encoder(Transformer(spec))


@pytest.mark.parametrize("change", [{"residual": False}, {"feed_forward": None}], ids=str)
def test_layers_without_residual_or_feed_forward_use_the_plain_encoder(change):
    spec = encoder_only(60, 32, 1, 4, 48)
    layers = (replace(spec.encoder.layers[0], **change),)
    spec = replace(spec, encoder=replace(spec.encoder, layers=layers))
    assert not supports_encoder(Transformer(spec))


def test_a_decoder_only_model_has_no_encoder():
    spec = Spec(60, 32, None, Stack((Layer(HEADS, Dense(48)),), causal=True), head=LmHead())
    assert not supports_encoder(Transformer(spec))


def test_ids_outside_the_vocabulary_raise():
    with pytest.raises(QkvError) as error:
        encode(Transformer(encoder_only(60, 32, 1, 4, 48)).eval(), torch.tensor([[5, 60]]))
    assert (
        str(error.value)
        == "ids: 60 is out of range; this vocabulary ends at 59; is the tokenizer the model's own?"
    )


@pytest.mark.parametrize("name, method", [("modern", "rotation"), ("2017 paper", "forward")])
def test_extending_positions_in_one_thread_does_not_affect_another(name, method, monkeypatch):
    model = random_model(SPECS[name])
    long, other = torch.randint(4, 50, (1, 90)), torch.randint(4, 50, (1, 80))
    expected = [encode(model, ids).states for ids in (long, other)]
    positions, started, done = model.encoder.positions, Event(), Event()

    def slowly(*arguments, compute=getattr(positions, method)):
        started.set()  # the tables of 128 positions are incomplete
        done.wait(60)
        return compute(*arguments)

    encoder = PackedEncoder(model)
    monkeypatch.setattr(positions, method, slowly)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(encoder, long[0], [(1, 90)])
        assert started.wait(60)
        monkeypatch.undo()
        second = encoder(other[0], [(1, 80)])
        done.set()
        found = first.result(timeout=60), second
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[None], theirs, rtol=0, atol=0)
