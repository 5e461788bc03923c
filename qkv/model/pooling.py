"""Pooling: token vectors to one sentence vector (cls, mean or max); padding has no effect.

The definitions are in textbook/pooling.py. See docs/guides/embeddings.md, "Training".
"""

import math

from torch import Tensor

from qkv.errors import QkvError, near_miss
from qkv.messages import _

__all__ = ["pool"]


def pool(x: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """(batch, length, d_model) -> (batch, d_model).

    Args:
        x: hidden states.
        attention_mask: (batch, length), True = token; None: no padding.
        pooling: cls, mean or max.
    """
    if pooling not in POOLINGS:
        wrong = _("no pooling '{pooling}'", pooling=pooling)
        raise QkvError("pooling", wrong, near_miss(pooling, POOLINGS))
    if attention_mask is not None:
        check_no_empty_row(attention_mask)
    return POOLINGS[pooling](x, attention_mask)


def cls_pooling(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The vector of the first token, which is not at index 0 in a left-padded row."""
    if attention_mask is None:
        return x[:, 0]
    first = attention_mask.int().argmax(dim=1)                     # (batch,)
    return x.take_along_dim(first[:, None, None], dim=1)[:, 0]     # (batch, d_model)


def mean_pooling(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The mean over tokens, as one matrix product without a masked copy of x."""
    if attention_mask is None:
        return x.mean(dim=1)
    weights = attention_mask.to(x.dtype)                           # (batch, length)
    weights = weights / weights.sum(dim=1, keepdim=True)
    return (weights[:, None] @ x)[:, 0]                            # (batch, d_model)


def max_pooling(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The maximum of each component over tokens."""
    if attention_mask is not None:
        x = x.masked_fill(~attention_mask[..., None], -math.inf)
    return x.amax(dim=1)                                           # (batch, d_model)


POOLINGS = {"cls": cls_pooling, "mean": mean_pooling, "max": max_pooling}


def check_no_empty_row(attention_mask: Tensor) -> None:
    """Raise an error if a row is all padding."""
    empty_rows = (~attention_mask.any(dim=1)).nonzero()
    if len(empty_rows):
        row, right = int(empty_rows[0]), _("give every sentence at least one token")
        raise QkvError(_("row {row}", row=row), _("nothing but padding"), right)
