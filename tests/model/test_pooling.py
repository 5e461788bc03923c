"""Sentence vectors: three poolings, each equal to its definition, and padding that never counts."""

import pytest
import torch

from qkv.errors import QkvError
from qkv.model.pooling import POOLINGS, pool
from qkv.textbook import pooling as textbook

DEFINITIONS = {
    "cls": textbook.cls_pooling,
    "mean": textbook.mean_pooling,
    "max": textbook.max_pooling,
}


def some(rows=20, length=9, width=6):
    torch.manual_seed(0)
    lengths = torch.randint(1, length + 1, (rows,))
    return torch.randn(rows, length, width, dtype=torch.float64), torch.arange(length) < lengths[
        :, None
    ]


@pytest.mark.parametrize("side", ["right", "left", "both"])
@pytest.mark.parametrize("how", POOLINGS)
def test_pooling_equals_its_definition(how, side):
    x, real = some()
    real = {"right": real, "left": real.flip(1), "both": real.roll(3, dims=1)}[side]
    torch.testing.assert_close(pool(x, real, how), DEFINITIONS[how](x, real), rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", POOLINGS)
def test_without_padding_no_mask_is_needed(how):
    x, _ = some()
    expected = DEFINITIONS[how](x, torch.ones(x.shape[:2], dtype=torch.bool))
    torch.testing.assert_close(pool(x, None, how), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", POOLINGS)
def test_what_stands_at_padding_changes_neither_vector_nor_gradient(how):
    x, real = some()
    x.requires_grad_()
    other = x.detach().masked_fill(~real[..., None], 7.0)
    vectors = pool(x, real, how)
    assert torch.equal(vectors, pool(other, real, how))
    vectors.square().sum().backward()
    assert x.grad is not None and not x.grad[~real].any() and x.grad[real].any()


@pytest.mark.parametrize("how", POOLINGS)
def test_a_row_of_nothing_but_padding_is_refused(how):
    x, real = some()
    real[4] = False
    with pytest.raises(QkvError) as error:
        pool(x, real, how)
    assert str(error.value) == "row 4: nothing but padding; give every sentence at least one token"


def test_another_name_is_refused_with_the_near_one():
    x, real = some()
    with pytest.raises(QkvError) as error:
        pool(x, real, "meen")
    assert str(error.value) == "pooling: no pooling 'meen'; did you mean 'mean'?"
