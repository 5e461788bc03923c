"""Pooling: cls, mean and max equal their definitions, and padding has no effect."""

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


def random_batch(rows=20, length=9, width=6):
    torch.manual_seed(0)
    lengths = torch.randint(1, length + 1, (rows,))
    return torch.randn(rows, length, width, dtype=torch.float64), torch.arange(length) < lengths[
        :, None
    ]


@pytest.mark.parametrize("side", ["right", "left", "both"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_equals_its_textbook_definition(pooling, side):
    x, attention_mask = random_batch()
    attention_mask = {
        "right": attention_mask,
        "left": attention_mask.flip(1),
        "both": attention_mask.roll(3, dims=1),
    }[side]
    torch.testing.assert_close(
        pool(x, attention_mask, pooling),
        DEFINITIONS[pooling](x, attention_mask),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_without_padding_no_mask_is_needed(pooling):
    x, _ = random_batch()
    expected = DEFINITIONS[pooling](x, torch.ones(x.shape[:2], dtype=torch.bool))
    torch.testing.assert_close(pool(x, None, pooling), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_padding_changes_neither_vector_nor_gradient(pooling):
    x, attention_mask = random_batch()
    x.requires_grad_()
    other = x.detach().masked_fill(~attention_mask[..., None], 7.0)
    vectors = pool(x, attention_mask, pooling)
    assert torch.equal(vectors, pool(other, attention_mask, pooling))
    vectors.square().sum().backward()
    assert x.grad is not None and not x.grad[~attention_mask].any() and x.grad[attention_mask].any()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_row_of_padding_only_is_an_error(pooling):
    x, attention_mask = random_batch()
    attention_mask[4] = False
    with pytest.raises(QkvError) as error:
        pool(x, attention_mask, pooling)
    assert str(error.value) == "row 4: nothing but padding; give every sentence at least one token"


def test_an_unknown_pooling_is_an_error_with_a_suggestion():
    x, attention_mask = random_batch()
    with pytest.raises(QkvError) as error:
        pool(x, attention_mask, "meen")
    assert str(error.value) == "pooling: no pooling 'meen'; did you mean 'mean'?"
