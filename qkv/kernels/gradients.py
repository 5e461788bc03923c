"""Three small operations with their gradients written down: fewer passes over memory than torch makes of them on a CPU.

In: tensors that need gradients. Out: the very numbers of torch's own operations, in about half the time. Where nobody learns, or
elsewhere than on a CPU, or under torch.compile, which fuses by itself, torch's own run. Told in docs/performance.md, "Training".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.kernels import native_ops
from qkv.kernels.native_ops import can_turn, is_native, rms, rms_back, turned


def pays(x: Tensor) -> bool:
    """Whether the written-down gradient is the better way here."""
    plain = x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu"
    return plain and torch.is_grad_enabled() and not torch.compiler.is_compiling()


class RMSNorm(nn.RMSNorm):
    """gain * x / sqrt(mean(x^2) + eps)."""

    def forward(self, x: Tensor) -> Tensor:
        return _Rms.apply(x, self.weight, self.eps) if pays(x) else super().forward(x)


class _Rms(torch.autograd.Function):
    """With n = x / r the unit stream and g the gradient: dx = (gain g - n mean(gain g n)) / r, dgain = sum of g n."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        ctx.native = is_native(x)
        if ctx.native:
            out, shrink = rms(x, gain, eps)
            ctx.save_for_backward(x, shrink, gain)
            return out
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)                # one pass, no square is stored
        shrink = size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()            # (..., 1): 1 / r
        unit = x * shrink
        ctx.save_for_backward(unit, shrink, gain)
        return unit * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, shrink, gain = ctx.saved_tensors
        if ctx.native:  # what was kept is x itself
            return *rms_back(unit, gain, shrink, grad), None
        both = grad * unit                                                      # (..., d)
        mean = (both @ gain).div_(len(gain)).unsqueeze(-1)                      # (..., 1)
        grad_x = (grad * gain).addcmul_(unit, mean, value=-1).mul_(shrink)
        return grad_x, both.reshape(-1, len(gain)).sum(dim=0), None


def turned_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(a, b) -> (a cos - b sin, b cos + a sin) for the two halves of the turned width; the rest stays."""
    if pays(x):
        return _Turned.apply(x, cos, sin)
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class _Turned(torch.autograd.Function):
    """The gradient of a turn is the turn back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turned(grad, cos, sin, -1), None, None


def _turned(x: Tensor, cos: Tensor, sin: Tensor, way: int) -> Tensor:
    if can_turn(x, cos, sin):
        return turned(x, cos, sin, way)
    half = cos.shape[-1]
    out = torch.empty_like(x)
    (a, b), (new_a, new_b) = ((one[..., :half], one[..., half : 2 * half]) for one in (x, out))
    torch.mul(a, cos, out=new_a).addcmul_(b, sin, value=-way)
    torch.mul(b, cos, out=new_b).addcmul_(a, sin, value=way)
    out[..., 2 * half :] = x[..., 2 * half :]
    return out


def relu_squared(x: Tensor) -> Tensor:
    return _ReluSquared.apply(x) if pays(x) else F.relu(x).square()


class _ReluSquared(torch.autograd.Function):
    """max(x, 0)^2, whose slope is 2 max(x, 0)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.native = is_native(x)
        if ctx.native:
            ctx.save_for_backward(x)
            return native_ops.relu_squared(x)
        positive = x.relu()
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        if ctx.native:  # what was kept is x itself
            return native_ops.relu_squared_back(positive, grad)
        return (grad * positive).mul_(2)
