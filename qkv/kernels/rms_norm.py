"""RMSNorm over the last dimension: y = gain * x / sqrt(mean(x^2) + eps).

With s = 1 / sqrt(mean(x^2) + eps), n = x s and the gradient g of y:
    dx = s (gain g - n mean(gain g n)),  dgain = sum of g n over all rows.
In training on a CPU rms_norm.cpp computes each in one pass; without the native library a few torch
operations, in fewer passes than torch's own RMSNorm. See docs/explanation/performance.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.kernels.build import can_be_native, native
from qkv.kernels.calling import (
    as_heads,
    empty_heads_like,
    head_layout,
    training_threads,
    use_custom_gradient,
)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """gain * x / sqrt(mean(x^2) + eps) for x (..., width) and gain (width,)."""
    if use_custom_gradient(x):
        return _RMSNorm.apply(x, gain, eps)  # type: ignore[no-untyped-call]
    return F.rms_norm(x, list(gain.shape), gain, eps)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        ctx.native = can_be_native(x)
        out, saved, scale = (_native_forward if ctx.native else _forward)(x, gain, eps)
        ctx.save_for_backward(saved, scale, gain)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        backward = _native_backward if ctx.native else _backward
        return *backward(grad, *ctx.saved_tensors), None


def _forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The output, n (..., width) and s (..., 1)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # one pass; x^2 is not stored
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    normalized = x * scale
    return normalized * gain, normalized, scale


def _backward(
    grad: Tensor, normalized: Tensor, scale: Tensor, gain: Tensor
) -> tuple[Tensor, Tensor]:
    product = grad * normalized  # (..., width)
    mean = (product @ gain).div_(len(gain)).unsqueeze(-1)  # (..., 1)
    grad_x = (grad * gain).addcmul_(normalized, mean, value=-1).mul_(scale)
    return grad_x, product.reshape(-1, len(gain)).sum(dim=0)


def _native_forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The output, x itself and s (batch, heads, length)."""
    heads = as_heads(x)
    out, scale = empty_heads_like(heads), x.new_empty(heads.shape[:3])
    native(x).qkv_rms_norm(
        head_layout(heads, heads, out),
        heads.data_ptr(),
        gain.data_ptr(),
        eps,
        training_threads(x),
        out.data_ptr(),
        scale.data_ptr(),
    )
    return out.reshape(x.shape), x, scale


def _native_backward(grad: Tensor, x: Tensor, scale: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    heads, grad = as_heads(x), as_heads(grad)
    out, gain_sums = empty_heads_like(heads), x.new_zeros(len(heads), heads.shape[3])
    native(x).qkv_rms_norm_backward(
        head_layout(heads, grad, out),
        heads.data_ptr(),
        gain.data_ptr(),
        scale.data_ptr(),
        grad.data_ptr(),
        training_threads(x),
        out.data_ptr(),
        gain_sums.data_ptr(),
    )
    return out.reshape(x.shape), gain_sums.sum(dim=0)
