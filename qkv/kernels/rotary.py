"""Rotary position embedding: dimension i of the rotated width is paired with dimension i + half.

Each pair (a, b) becomes (a cos - b sin, b cos + a sin); the gradient is rotated by the negative
angle.
In training on a CPU rotary.cpp computes each in one pass; without the native library torch
operations in place.
See docs/explanation/performance.md.
"""

from typing import Any

import torch
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


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 * half dimensions of each row; the others are copied.

    Args:
        x: (batch, heads, length, width).
        cos: Cosines of the angles, (batch or 1, 1, length, half).
        sin: Sines, in the same shape.
    """
    if use_custom_gradient(x):
        return _RotateHalves.apply(x, cos, sin)  # type: ignore[no-untyped-call]
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class _RotateHalves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin, -1), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    """Rotate by the angle (direction 1) or by its negative (-1)."""
    if can_be_native(x) and _has_angles_per_position(x, cos, sin):
        return _native_rotate(x, cos, sin, direction)
    half = cos.shape[-1]
    out = torch.empty_like(x)
    a, b = x[..., :half], x[..., half : 2 * half]
    torch.mul(a, cos, out=out[..., :half]).addcmul_(b, sin, value=-direction)
    torch.mul(b, cos, out=out[..., half : 2 * half]).addcmul_(a, sin, value=direction)
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def _has_angles_per_position(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the angles broadcast over batch and heads only, as rotary.cpp expects."""
    same = x.dim() == 4 and cos.shape == sin.shape and cos.shape[2] == x.shape[2]
    return same and len(cos) in (1, len(x))


def _native_rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: int) -> Tensor:
    x, cos, sin = as_heads(x), cos.contiguous(), sin.contiguous()
    out, angle_stride = empty_heads_like(x), cos.stride(0) if len(cos) > 1 else 0
    native(x).qkv_rotate(
        head_layout(x, x, out),
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        angle_stride,
        cos.shape[-1],
        direction,
        training_threads(x),
        out.data_ptr(),
    )
    return out
