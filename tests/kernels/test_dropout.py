"""Dropout drops the fraction p, keeps the mean, and is the identity in eval mode."""

import pytest
import torch
from small_models import assert_close, decoder, random_ids

from qkv.kernels.dropout import LEVELS
from qkv.model.dropout import Dropout
from qkv.model.transformer import Transformer


@pytest.mark.parametrize("p", [0.004, 0.1, 0.3, 0.5, 0.9])
def test_the_fraction_of_zeros_is_p_and_the_mean_is_kept(p):
    n, x = 400_000, torch.ones(400_000)
    out = Dropout(p)(x)
    rounded = round(p * LEVELS) / LEVELS
    assert abs(rounded - p) <= 0.5 / LEVELS
    deviation = (rounded * (1 - rounded) / n) ** 0.5
    assert out.eq(0).float().mean() == pytest.approx(rounded, abs=5 * deviation)
    assert out.unique().tolist() == pytest.approx([0, 1 / (1 - rounded)])
    assert out.mean() == pytest.approx(1.0, abs=5 * deviation / (1 - rounded))


def test_neighbors_are_dropped_independently():
    dropped = Dropout(0.5)(torch.ones(400_000)).eq(0).view(-1, 8).double()
    correlation = torch.corrcoef(dropped.T) - torch.eye(8)  # eight elements share 64 random bits
    assert correlation.abs().max() < 5 / 50_000**0.5


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 9)], ids=str)
def test_the_gradient_is_dropped_where_the_element_is(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    out = Dropout(0.5)(x)
    out.sum().backward()
    assert_close(out, x * x.grad)
    assert x.grad.unique().tolist() in ([0, 2], [2], [0])


def test_adding_to_the_residual_equals_dropout_then_sum():
    dropout, x = Dropout(0.4), torch.randn(50, requires_grad=True)
    stream = torch.randn(50, requires_grad=True)
    torch.manual_seed(5)
    fused = dropout.add(stream, x)
    torch.manual_seed(5)
    torch.testing.assert_close(fused, stream + dropout(x))
    fused.sum().backward()
    assert stream.grad.eq(1).all() and x.grad.eq(0).any() and x.grad.gt(1).any()


def test_the_same_seed_drops_the_same_elements():
    model, ids = Transformer(decoder(dropout=0.3)), random_ids(decoder(), 2, 6)
    torch.manual_seed(1)
    first = model.decode(ids)
    torch.manual_seed(1)
    again, other = model.decode(ids), model.decode(ids)
    assert torch.equal(first, again) and not torch.equal(again, other)


def test_eval_mode_drops_nothing():
    x = torch.randn(100)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_a_probability_near_one_drops_almost_all():
    out = Dropout(0.999)(torch.ones(10_000))
    assert out.isfinite().all() and out.eq(0).float().mean() > 0.98
