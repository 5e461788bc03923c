"""Dropout: some numbers are silenced while training, so that no neuron relies on one other.

In: a tensor. Out: each number zero with probability p, else divided by 1 - p; in evaluation the tensor itself.
One 64-bit draw serves eight numbers: on a CPU torch's own costs more than the layer it protects. docs/performance.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 256  # a byte decides: the probability is rounded to 1/256 and the scale is that of the rounded one


class _CheapDropout(torch.autograd.Function):
    """Multiplies by a byte mask drawn eight numbers at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        silenced = max(1, round(p * STEPS))
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
        dropped = words.view(torch.uint8)[: x.numel()].view(x.shape) < silenced
        ctx.save_for_backward(dropped)
        ctx.scale = STEPS / (STEPS - silenced)
        return x.masked_fill(dropped, 0.0).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (dropped,) = ctx.saved_tensors
        return grad.masked_fill(dropped, 0.0).mul_(ctx.scale), None


class Dropout(nn.Module):
    """Cheap on a CPU, torch's own elsewhere."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type == "cpu":
            return _CheapDropout.apply(x, self.p)
        return F.dropout(x, self.p)
