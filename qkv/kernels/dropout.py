"""Dropout: some numbers are silenced while training, so that no neuron relies on one other.

In: a tensor. Out: each number zero with probability p, else divided by 1 - p; in evaluation the tensor itself.
One 64-bit draw serves eight numbers: on a CPU torch's own costs more than the layer it protects. docs/performance.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 256  # a byte decides: the probability is rounded to 1/256 and the scale is that of the rounded one


class _Masked(torch.autograd.Function):
    """x * mask, or stream + x * mask in one pass."""

    @staticmethod
    def forward(ctx: Any, stream: Tensor | None, x: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return x * mask if stream is None else torch.addcmul(stream, x, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (mask,) = ctx.saved_tensors
        return grad if ctx.needs_input_grad[0] else None, grad * mask, None


class Dropout(nn.Module):
    """Cheap on a CPU, torch's own elsewhere."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x with a share of its numbers silenced."""
        return self._applied(None, x) if self.training and self.p else x

    def add(self, stream: Tensor, x: Tensor) -> Tensor:
        """stream + dropout(x): what every residual does."""
        return self._applied(stream, x) if self.training and self.p else stream + x

    def _applied(self, stream: Tensor | None, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return _Masked.apply(stream, x, cheap_mask(x, self.p))
        dropped = F.dropout(x, self.p)
        return dropped if stream is None else stream + dropped


def cheap_mask(x: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 - p), in the shape of x; eight numbers from each 64-bit draw."""
    silenced = min(max(1, round(p * STEPS)), STEPS - 1)
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    scale = STEPS / (STEPS - silenced)
    # Bytes below `silenced` end at 0, all others at `scale`: arithmetic on floats is faster here than comparing.
    numbers = words.view(torch.uint8)[: x.numel()].view(x.shape).to(x.dtype)
    return numbers.sub_(silenced - 1).mul_(scale).clamp_(0.0, scale)
