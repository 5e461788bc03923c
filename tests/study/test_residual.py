"""The studies without residual connections and without the feed-forward, against plain formulas."""

from pathlib import Path

import pytest
import torch

from qkv.model.attention_context import AttentionContext
from qkv.study import feed_forward, residual
from qkv.study.question import Trial


def decoder_of(module, **settings):
    trial = Trial(settings, 0, 0, Path(), lambda step: None)
    return module.new_decoder(trial).double()


def layer_of(model):
    return model.decoder.layers[0], AttentionContext(5, causal=True)


X = torch.randn(2, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_a_layer_without_residuals_is_its_branches_one_after_the_other():
    layer, context = layer_of(decoder_of(residual, residual=False, layers=1))
    hidden = layer.attn.branch(layer.attn.norm(X), context)
    expected = layer.ffn.branch(layer.ffn.norm(hidden))
    torch.testing.assert_close(layer(X, context), expected, rtol=0, atol=1e-12)


def test_a_layer_with_residuals_adds_its_input():
    layer, context = layer_of(decoder_of(residual, residual=True, layers=1))
    hidden = X + layer.attn.branch(layer.attn.norm(X), context)
    expected = hidden + layer.ffn.branch(layer.ffn.norm(hidden))
    torch.testing.assert_close(layer(X, context), expected, rtol=0, atol=1e-12)


def test_a_layer_without_feed_forward_is_attention():
    layer, context = layer_of(decoder_of(feed_forward, feed_forward=False, layers=1))
    expected = X + layer.attn.branch(layer.attn.norm(X), context)
    torch.testing.assert_close(layer(X, context), expected, rtol=0, atol=1e-12)


def test_without_residuals_the_weights_are_the_same():
    with_them, without = (decoder_of(residual, residual=r, layers=2) for r in (True, False))
    pairs = zip(with_them.parameters(), without.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_three_times_the_layers_without_feed_forward_have_the_same_matrices():
    counts = [
        sum(w.numel() for w in decoder_of(feed_forward, **c.settings).parameters() if w.ndim == 2)
        for c in feed_forward.QUESTION.experiments["feed-forward"].conditions.values()
    ]
    assert counts[0] == counts[2] == counts[1] + 2 * 8 * 64**2


@pytest.mark.parametrize("has_feed_forward", [True, False])
def test_counted_flops_are_those_of_torchs_counter(has_feed_forward):
    from torch.utils.flop_counter import FlopCounterMode

    from qkv.model.eager_core import eager_attention

    settings = {"feed_forward": has_feed_forward, "layers": 2}
    trial = Trial(settings, 0, 0, Path(), lambda step: None)
    model, counter = feed_forward.new_decoder(trial), FlopCounterMode(display=False)
    ids = torch.zeros(feed_forward.BATCH, feed_forward.LENGTH, dtype=torch.long)
    with torch.no_grad(), eager_attention(model), counter:
        model.logits(model.decode(ids))
    assert feed_forward.forward_flops(model, trial) == counter.get_total_flops()
