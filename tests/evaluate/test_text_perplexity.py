"""Perplexity of a text: each token is scored once, with the context that the stride gives."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.evaluate.text_perplexity import (
    TextPerplexity,
    documents_perplexity,
    text_perplexity,
    windows,
)
from qkv.model.presets import decoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer

VOCAB = 11


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Transformer(decoder_only(VOCAB, 16, 2, Attention(2, 2, 8), Gated(24))).double().eval()


def random_text(length, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.uint16)


@torch.no_grad()
def token_by_token(model, ids, context, stride, bos_id):
    """The definition, one prediction at a time: the context of a token starts with its window."""
    text = ([bos_id] if bos_id is not None else []) + ids.tolist()
    nats = 0.0
    for position in range(1, len(text)):
        # Windows end after context, context + stride, ... predictions, the last one after all.
        end = (
            context
            if position <= context
            else context + stride * math.ceil((position - context) / stride)
        )
        begin = max(0, min(end, len(text) - 1) - context)
        logits = model.logits(model.decode(torch.tensor([text[begin:position]])))[0, -1]
        nats += float(F.cross_entropy(logits, torch.tensor(text[position])))
    return nats


@pytest.mark.parametrize("bos_id", [None, 3])
@pytest.mark.parametrize(
    ("length", "context", "stride"),
    [(30, 8, 4), (30, 8, 1), (30, 8, 8), (29, 7, 5), (5, 8, 4), (1, 4, 2)],
)
def test_the_sum_equals_that_of_predicting_token_by_token(model, length, context, stride, bos_id):
    ids = random_text(length)
    found = text_perplexity(model, ids, 30, context, stride, bos_id)
    assert found.tokens == length - (bos_id is None)
    assert found.nats == pytest.approx(
        token_by_token(model, ids, context, stride, bos_id), rel=1e-9
    )


def test_the_batch_size_does_not_change_the_sum(model, monkeypatch):
    ids = random_text(200, seed=1)
    whole = text_perplexity(model, ids, 200, 16, 8, bos_id=0)
    monkeypatch.setattr("qkv.evaluate.text_perplexity.BATCH_TOKENS", 32)
    assert text_perplexity(model, ids, 200, 16, 8, bos_id=0).nats == pytest.approx(
        whole.nats, rel=1e-12
    )


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 40))
def test_every_token_is_scored_once_with_enough_context(n, context, stride):
    stride = min(stride, context)
    scored = [
        position
        for window in windows(n, context, stride)
        for position in range(
            window.start + window.length - window.scored, window.start + window.length
        )
    ]
    assert scored == list(range(n))
    for window in windows(n, context, stride)[1:]:
        assert window.length == context and window.scored <= stride


def test_bits_per_byte_do_not_depend_on_the_tokenization():
    assert TextPerplexity(nats=8 * math.log(2), tokens=4, bytes=8).bits_per_byte == pytest.approx(
        1.0
    )
    assert TextPerplexity(nats=8 * math.log(2), tokens=2, bytes=8).bits_per_byte == pytest.approx(
        1.0
    )
    assert TextPerplexity(nats=8 * math.log(2), tokens=4, bytes=8).value == pytest.approx(4.0)
    assert math.isnan(TextPerplexity(0.0, 0, 0).nats_per_token) and math.isnan(
        TextPerplexity(0.0, 0, 0).bits_per_byte
    )


def test_training_mode_is_restored(model):
    model.train()
    text_perplexity(model, random_text(9), 9, 4)
    assert model.training
    model.eval()


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: text_perplexity(model, np.array([VOCAB, 3]), 2, 8, bos_id=0),
        lambda model: documents_perplexity(model, np.array([VOCAB, 3, 0]), 2, 8, eos_id=0),
    ],
)
def test_training_mode_is_restored_after_an_error(measure):
    model = Transformer(decoder_only(VOCAB, 16, 1, Attention(2, 2, 8), Gated(24))).train()
    with pytest.raises(QkvError, match="out of range"):
        measure(model)  # there is no token VOCAB
    assert all(module.training for module in model.modules())
