"""Tiny encoder-decoder models: random ones, and one partly trained to reverse its input."""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from qkv.engine import packed_model
from qkv.model.presets import encoder_decoder, marian
from qkv.model.spec import Attention, Spec, Stack
from qkv.model.transformer import Transformer

PAD, BOS, EOS = 0, 1, 2


def rows(
    n: int, vocab: int = 24, longest: int = 10, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids that end in <eos>, padded on the right, and their attention mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=generator)
    ids = torch.randint(3, vocab, (n, longest + 1), generator=generator)
    position = torch.arange(longest + 1)
    ids[position == lengths[:, None]] = EOS
    attention_mask = position <= lengths[:, None]
    ids[~attention_mask] = PAD
    width = int(lengths.max()) + 1
    return ids[:, :width], attention_mask[:, :width]


def tiny_marian(heads: Attention) -> Spec:
    """Marian with 60 tokens, a width of 32 and two layers per stack."""

    def stack(of: Stack) -> Stack:
        mixer, cross = replace(heads, bias=True, out_bias=True), heads if of.causal else None
        return Stack((replace(of.layers[0], mixer=mixer, repeat=2, cross=cross),), of.causal)

    spec = marian()
    stacks = {"encoder": stack(spec.encoder), "decoder": stack(spec.decoder)}
    return replace(spec, vocab_size=60, d_model=32, **stacks)


def unpadded(ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> list[list[int]]:
    """The ids of each row without padding."""
    if attention_mask is None:
        return ids.tolist()
    return [row[is_token].tolist() for row, is_token in zip(ids, attention_mask, strict=True)]


def repacked(kind: Any, model: Transformer, weight: torch.Tensor) -> tuple[Any, Any]:
    """`kind.of(model)` before and after the weight has changed: kept until then, then another."""
    first = kind.of(model)
    assert kind.of(model) is first
    with torch.no_grad():
        weight.add_(1.0)
    second = kind.of(model)
    assert second is not first
    return first, second


@pytest.fixture(scope="session")
def make_sources():
    return rows


@pytest.fixture(scope="session")
def random_model():
    """Random weights, in float64."""

    def make(seed: int, vocab: int = 6) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(encoder_decoder(vocab, 8, layers=1, n_heads=2, d_ff=16)).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.3)
        return model.eval()

    return make


@pytest.fixture(scope="session")
def half_trained() -> Transformer:
    """Trained briefly to reverse its input: some predictions are certain, others are not."""
    torch.manual_seed(1)
    model = Transformer(encoder_decoder(24, 32, layers=2, n_heads=2, d_ff=64, dropout=0.0))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(120):
        source, attention_mask = rows(64, seed=step + 100)
        lengths = attention_mask.sum(dim=1) - 1
        position = torch.arange(source.shape[1])
        target = source.gather(1, (lengths[:, None] - 1 - position) % source.shape[1]).where(
            position < lengths[:, None], EOS
        )
        decoder_ids = torch.cat([torch.full((64, 1), BOS), target[:, :-1]], dim=1)
        stream = model.decode(decoder_ids, model.encode(source, attention_mask))
        loss = model.loss(stream, target, attention_mask) / attention_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.double().eval()


@pytest.fixture(params=[torch.float64, torch.float32], ids=str)
def half_trained_in_dtype(half_trained, request):
    """`half_trained` in float64 and in float32."""
    yield half_trained.to(request.param)
    half_trained.double()


@pytest.fixture(params=["torch", pytest.param("native", marks=pytest.mark.native)])
def step_backend(request, monkeypatch):
    """Packed steps run in torch operations, or in the native library, which must exist."""
    monkeypatch.setattr(packed_model, "can_be_native", lambda weight: request.param == "native")
    monkeypatch.setattr(packed_model, "_packed_models", WeakKeyDictionary())  # packed otherwise
    return request.param
