"""Pooling: the vectors of a sentence's tokens in, one vector for the sentence out.

`padding` is True for real tokens, the only ones that count; a sentence has at least one.
Told in docs/embedding.md, "Training".
"""

import math

import torch
from torch import Tensor


def cls_pooling(x: Tensor, padding: Tensor) -> Tensor:
    """The vector of the first real token, which is [CLS] where a model has been trained so."""
    check(padding)
    return torch.stack([vectors[real][0] for vectors, real in zip(x, padding, strict=True)])    # (batch, d_model)


def mean_pooling(x: Tensor, padding: Tensor) -> Tensor:
    """The mean of the vectors of all real tokens."""
    check(padding)
    real = padding[..., None]                               # (batch, length, 1)
    return (x * real).sum(dim=1) / real.sum(dim=1)          # (batch, d_model)


def max_pooling(x: Tensor, padding: Tensor) -> Tensor:
    """The largest value of each component over all real tokens."""
    check(padding)
    return x.masked_fill(~padding[..., None], -math.inf).amax(dim=1)    # (batch, d_model)


def check(padding: Tensor) -> None:
    """A sentence of nothing but padding has no vector."""
    if not padding.any(dim=1).all():
        raise ValueError("a row has no real token, so there is nothing to pool")
