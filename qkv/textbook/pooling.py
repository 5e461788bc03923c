"""Pooling: token vectors to one sentence vector.

`attention_mask` is True for tokens; padding has no effect. See docs/guides/embeddings.md,
"Training".
"""

import math

import torch
from torch import Tensor

__all__ = ["check_no_empty_row", "cls_pooling", "max_pooling", "mean_pooling"]


def cls_pooling(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The vector of the first token, [CLS] in BERT."""
    check_no_empty_row(attention_mask)
    rows = zip(x, attention_mask, strict=True)
    return torch.stack([vectors[mask][0] for vectors, mask in rows])    # (batch, d_model)


def mean_pooling(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean of the vectors of all tokens."""
    check_no_empty_row(attention_mask)
    mask = attention_mask[..., None]                        # (batch, length, 1)
    return (x * mask).sum(dim=1) / mask.sum(dim=1)          # (batch, d_model)


def max_pooling(x: Tensor, attention_mask: Tensor) -> Tensor:
    """The maximum of each component over all tokens."""
    check_no_empty_row(attention_mask)
    x = x.masked_fill(~attention_mask[..., None], -math.inf)
    return x.amax(dim=1)                                    # (batch, d_model)


def check_no_empty_row(attention_mask: Tensor) -> None:
    """A sentence of padding only has no vector."""
    if not attention_mask.any(dim=1).all():
        raise ValueError("a row has no token, so there is nothing to pool")
