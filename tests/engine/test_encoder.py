"""The fast encoder gives what the model's own gives, for every encoder it takes on, and leaves the others alone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch

from qkv.engine.encoder import (
    PackedEncoder,
    PlainEncoder,
    encode,
    groups_of,
    make_encoder,
    supports_encoder,
)
from qkv.errors import QkvError
from qkv.model.explained import explained
from qkv.model.presets import bert, encoder_only, marian
from qkv.model.spec import (
    Convolution,
    Dense,
    Experts,
    Gated,
    Heads,
    Layer,
    Learned,
    LmHead,
    NoPositions,
    Norm,
    Pooler,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
)
from qkv.model.transformer import Transformer

HEADS = Heads(4, 4, 8)


def spec(layer: Layer, **more) -> Spec:
    return Spec(
        60,
        32,
        Stack((layer,), **{"final_norm": True, **more.pop("stack", {})}),
        **{"max_len": 90, **more},
    )


SPECS = {
    "today's": spec(Layer(replace(HEADS, qk_norm=True), Dense(48, "relu2"), Norm("rms"), repeat=2)),
    "the paper's": spec(
        Layer(HEADS, Dense(48), Norm(place="post"), repeat=2),
        positions=Sinusoidal(),
        scaled_embedding=True,
    ),
    "grouped, gated, half turned": spec(
        Layer(Heads(4, 2, 8), Gated(24), repeat=2), positions=Rotary(share=0.5)
    ),
    "turned in adjacent pairs": spec(
        Layer(HEADS, Dense(48, "silu"), repeat=2), positions=Rotary(pairs="adjacent")
    ),
    "bag of words": spec(
        Layer(HEADS, Dense(48, "gelu"), repeat=2), positions=NoPositions(), scaled_embedding=True
    ),
    "normed by batches": spec(Layer(HEADS, Dense(48), Norm("batch"), repeat=2)),
    "two kinds of layers": replace(
        spec(Layer(HEADS, Dense(48))),
        encoder=Stack(
            (Layer(HEADS, Dense(48)), Layer(Heads(2, 1, 8), Gated(24), Norm("rms", "post")))
        ),
    ),
    "learned from 2, two sentence types": spec(
        Layer(
            replace(HEADS, bias=True, out_bias=True),
            Dense(48, "gelu", bias=True),
            Norm(place="post", eps=1e-12),
        ),
        positions=Learned(2),
        token_types=2,
        head=Pooler(),
        stack={"final_norm": False, "embed_norm": True},
    ),
    "a translator's": replace(
        marian(),
        vocab_size=60,
        d_model=32,
        **{
            side: Stack(
                (
                    replace(
                        stack.layers[0],
                        mixer=replace(HEADS, bias=True, out_bias=True),
                        repeat=2,
                        cross=HEADS if side == "decoder" else None,
                    ),
                ),
                stack.sees,
            )
            for side, stack in (("encoder", marian().encoder), ("decoder", marian().decoder))
        },
    ),
}
LENGTHS = [70, 5, 3, 3, 1, 70]  # more than the first room, repeated, and a single token


def stirred(shape: Spec) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(shape).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def padded(left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    real = torch.arange(70) < torch.tensor(LENGTHS)[:, None]
    return torch.randint(4, 50, (6, 70)), real.flip(1) if left else real


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("left", [False, True])
@torch.inference_mode()
def test_padded_rows_give_what_the_model_gives(name, left):
    model, (ids, real) = stirred(SPECS[name]), padded(left)
    assert isinstance(make_encoder(model), PackedEncoder)
    memory = encode(model, ids, real)
    torch.testing.assert_close(
        memory.states[real], model.encode(ids, real).states[real], rtol=0, atol=1e-10
    )
    assert memory.real is real and not memory.states[~real].any()
    torch.testing.assert_close(
        encode(model, ids).states, model.encode(ids).states, rtol=0, atol=1e-10
    )


@torch.inference_mode()
def test_the_plain_way_gives_the_same_for_any_encoder():
    layer = Layer(HEADS, Dense(48), repeat=2)
    for other in (
        replace(layer, mixer=replace(HEADS, window=3)),
        replace(layer, mixer=Convolution(3)),
        replace(layer, feed_forward=Experts(2, 1, Gated(8))),
    ):
        model, (ids, real) = stirred(spec(other)), padded(left=False)
        assert isinstance(make_encoder(model), PlainEncoder)
        alone = torch.cat(
            [model.encode(row[kept][None]).states[0] for row, kept in zip(ids, real, strict=True)]
        )
        torch.testing.assert_close(encode(model, ids, real).states[real], alone, rtol=0, atol=1e-10)


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
    ids, real = padded(left=False)
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, ids, real).states[real],
            model.encode(ids, real).states[real],
            rtol=0,
            atol=1e-5,
        )


def test_joined_weights_follow_the_model_when_it_learns():
    model = Transformer(encoder_only(60, 32, 1, 4, 48)).eval()
    first = PackedEncoder.of(model)
    assert PackedEncoder.of(model) is first
    with torch.no_grad():
        model.encoder.layers[0].ffn.branch.up_proj.weight.add_(1.0)
    ids = torch.tensor([[5, 7, 9]])
    assert PackedEncoder.of(model) is not first
    with torch.inference_mode():
        torch.testing.assert_close(
            encode(model, ids).states, model.encode(ids).states, rtol=0, atol=1e-5
        )


def test_a_model_that_is_being_explained_takes_the_plain_way():
    model = Transformer(encoder_only(60, 32, 1, 4, 48)).eval()
    with explained(model, ["encoder.layers.0.attn.branch.core"]):
        assert not supports_encoder(model)
    assert supports_encoder(model)


def test_sentences_of_one_length_stand_side_by_side():
    assert (
        groups_of([2, 2, 5]) == [(2, 2), (1, 5)]
        and groups_of([0, 0, 1]) == [(1, 1)]
        and groups_of([]) == []
    )


def test_a_decoder_alone_has_no_encoder_to_run():
    writer = Spec(60, 32, None, Stack((Layer(HEADS, Dense(48)),), "past"), head=LmHead())
    assert not supports_encoder(Transformer(writer))


def test_ids_of_another_vocabulary_are_one_clear_line():
    with pytest.raises(QkvError) as error:
        encode(Transformer(encoder_only(60, 32, 1, 4, 48)).eval(), torch.tensor([[5, 60]]))
    assert (
        str(error.value)
        == "ids: 60 is out of range; this vocabulary ends at 59; is the tokenizer the model's own?"
    )


@pytest.mark.parametrize("name", ["today's", "the paper's"])
def test_a_longer_sentence_in_one_thread_does_not_disturb_another(name, monkeypatch):
    model, long, other = (
        stirred(SPECS[name]),
        torch.randint(4, 50, (1, 90)),
        torch.randint(4, 50, (1, 80)),
    )
    expected = [encode(model, ids).states for ids in (long, other)]
    positions, begun, done = model.encoder.positions, Event(), Event()

    def slow_turn(
        places, dtype, turn=type(positions).turn
    ):  # the plan for 128 places stands half made
        begun.set()
        done.wait(60)
        return turn(positions, places, dtype)

    encoder = PackedEncoder(model)
    monkeypatch.setattr(positions, "turn", slow_turn)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(encoder, long[0], [(1, 90)])
        assert begun.wait(60)
        monkeypatch.undo()
        second = encoder(other[0], [(1, 80)])
        done.set()
        found = first.result(timeout=60), second
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours[None], theirs, rtol=0, atol=0)
