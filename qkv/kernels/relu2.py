"""Squared ReLU: y = max(x, 0)^2, dx = 2 max(x, 0) g for the gradient g of y.

In training on a CPU relu2.cpp computes each in one pass; without it torch operations that keep
max(x, 0) only. Explained in docs/performance.md, "Training".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.kernels.calling import (
    address,
    can_be_native,
    custom_gradient_pays,
    native,
    training_threads,
)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2"""
    return _Relu2.apply(x) if custom_gradient_pays(x) else F.relu(x).square()


class _Relu2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.native = can_be_native(x)
        kept = x.contiguous() if ctx.native else x.relu()
        ctx.save_for_backward(kept)
        return _call(native(x).qkv_relu2, kept) if ctx.native else kept * kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (kept,) = ctx.saved_tensors
        if ctx.native:
            return _call(native(kept).qkv_relu2_backward, kept, grad.contiguous())
        return (grad * kept).mul_(2)


def _call(function: Any, *inputs: Tensor) -> Tensor:
    """Run a function of relu2.cpp on contiguous tensors of one shape."""
    x, out = inputs[0], torch.empty_like(inputs[0])
    function(*map(address, inputs), x.numel(), training_threads(x), address(out))
    return out
