"""Dropout: y = x * mask, or residual + x * mask; an element of the mask is 0 or 1 / (1 - p).

The gradient is g * mask. On a CPU one 64-bit random draw serves eight elements, and the residual is
added in the same pass, both by torch operations: torch's own dropout takes longer than the layer
before it. See docs/explanation/performance.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 256  # values of a random byte: p is rounded to 1/256, and the scale accordingly


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """dropout(x), or residual + dropout(x)."""
    if x.device.type == "cpu":
        return _MaskedAdd.apply(residual, x, random_mask(x, p))  # type: ignore[no-untyped-call]
    dropped = F.dropout(x, p)
    return dropped if residual is None else residual + dropped


class _MaskedAdd(torch.autograd.Function):
    """x * mask, or residual + x * mask in one pass."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask if residual is None else torch.addcmul(residual, x, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad if ctx.needs_input_grad[0] else None, grad * mask, None


def random_mask(x: Tensor, p: float) -> Tensor:
    """A mask in the shape of x: 0 with probability p, else 1 / (1 - p)."""
    dropped = min(max(1, round(p * LEVELS)), LEVELS - 1)
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    scale = LEVELS / (LEVELS - dropped)
    # Bytes below `dropped` become 0, others `scale`; float arithmetic is faster than a comparison.
    levels = words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.dtype)
    return levels.sub_(dropped - 1).mul_(scale).clamp_(0.0, scale)
