"""Squared ReLU: y = max(x, 0)^2, dx = 2 max(x, 0) g for the gradient g of y.

In training on a CPU relu2.cpp computes each in one pass; without the native library torch
operations, which save only max(x, 0). See docs/explanation/performance.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.kernels.build import address, can_be_native, native
from qkv.kernels.calling import training_threads, use_custom_gradient


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2"""
    if use_custom_gradient(x):
        return _Relu2.apply(x)  # type: ignore[no-untyped-call]
    return F.relu(x).square()


class _Relu2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.native = can_be_native(x)
        saved = x.contiguous() if ctx.native else x.relu()
        ctx.save_for_backward(saved)
        return _call(native(x).qkv_relu2, saved) if ctx.native else saved * saved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        if ctx.native:
            return _call(native(saved).qkv_relu2_backward, saved, grad.contiguous())
        return (grad * saved).mul_(2)


def _call(function: Any, *inputs: Tensor) -> Tensor:
    """Run a function of relu2.cpp on contiguous tensors of one shape."""
    x, out = inputs[0], torch.empty_like(inputs[0])
    function(*map(address, inputs), x.numel(), training_threads(x), address(out))
    return out
