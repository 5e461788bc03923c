"""Pooling: the vectors of a sentence's tokens become one vector of the sentence.

In: the encoder's stream, which tokens are real, and how: cls, mean or max. Out: (batch, d_model); padding never counts.
The definitions stand in textbook/pooling.py; told in docs/embedding.md, "Training".
"""

import math
from typing import Literal, get_args

from torch import Tensor

from qkv.errors import QkvError, near_miss
from qkv.messages import _

How = Literal["cls", "mean", "max"]
POOLINGS: tuple[str, ...] = get_args(How)


def pool(x: Tensor, real: Tensor | None, how: str) -> Tensor:
    """(batch, length, d_model) to (batch, d_model); `real` is True for tokens, None where there is no padding."""
    if how not in POOLINGS:
        raise QkvError("pooling", _("no pooling '{how}'", how=how), near_miss(how, POOLINGS))
    if real is not None:
        refuse_empty(real)
    match how:
        case "cls": return first_token(x, real)
        case "max": return largest(x, real)
        case _: return mean(x, real)


def first_token(x: Tensor, real: Tensor | None) -> Tensor:
    """The vector of the first real token, which padding on the left may have moved."""
    if real is None:
        return x[:, 0]
    first = real.int().argmax(dim=1)                                            # (batch,)
    return x.take_along_dim(first[:, None, None], dim=1)[:, 0]                  # (batch, d_model)


def mean(x: Tensor, real: Tensor | None) -> Tensor:
    """The mean over real tokens, as one product with a row of shares: the masked copy of x is never made."""
    if real is None:
        return x.mean(dim=1)
    shares = real.to(x.dtype)                                                   # (batch, length)
    shares = shares / shares.sum(dim=1, keepdim=True)
    return (shares[:, None] @ x)[:, 0]                                          # (batch, d_model)


def largest(x: Tensor, real: Tensor | None) -> Tensor:
    """The largest value of each component over real tokens."""
    if real is not None:
        x = x.masked_fill(~real[..., None], -math.inf)
    return x.amax(dim=1)                                                        # (batch, d_model)


def refuse_empty(real: Tensor) -> None:
    """A row of nothing but padding has no vector."""
    if not bool(real.any(dim=1).all()):
        row = int((~real.any(dim=1)).nonzero()[0, 0])
        raise QkvError(_("row {row}", row=row), _("nothing but padding"),
                       _("give every sentence at least one token"))
