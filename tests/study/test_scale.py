"""The study of sqrt(d_k): variances, entropies and gradients against independent computations."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from qkv.model.attention_mask import AttentionMask
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.study.question import Trial
from qkv.study.scale import WIDTHS, measure_scores, remove_scale, softmax_numbers
from qkv.textbook.attention import scaled_dot_product_attention


def trial(settings, seed=0) -> Trial:
    return Trial(settings, seed, 0, Path(), lambda step: None)


@pytest.mark.parametrize("d_k", WIDTHS)
def test_the_variance_of_scores_is_d_k(d_k):
    measured = measure_scores(trial({"d_k": d_k}))
    assert measured["variance"] == pytest.approx(d_k, rel=0.05)
    assert measured["scaled_variance"] == pytest.approx(1, rel=0.05)


def test_entropy_and_gradient_are_those_of_scipy_and_autograd():
    scores = 3 * torch.randn(5, 8, dtype=torch.float64)
    numbers = softmax_numbers(scores, "")
    rows = softmax(scores.numpy(), axis=1)
    jacobians = [
        torch.autograd.functional.jacobian(lambda row: row.softmax(0), row) for row in scores
    ]
    assert numbers["entropy"] == pytest.approx(np.mean([entropy(row) for row in rows]))
    expected = np.mean([jacobian.norm().item() for jacobian in jacobians])
    assert numbers["gradient"] == pytest.approx(expected)


def test_without_the_factor_a_model_has_unscaled_attention():
    torch.manual_seed(0)
    model = Transformer(from_sizes("decoder-only", 20, 16, 1, 1, 32, dropout=0.0)).double()
    remove_scale(model)
    branch = model.decoder.layers[0].attn.branch
    q, k, v = torch.randn(3, 1, 1, 6, 16, dtype=torch.float64)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    ours = branch.core(q, k, v, AttentionMask(mask), branch.scale)
    expected, _ = scaled_dot_product_attention(math.sqrt(16) * q, k, v, mask)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)
