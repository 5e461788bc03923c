"""What training.cpp does, called with tensors: a turn, the squared ReLU, RMSNorm, forward and back.

In: tensors on a CPU. Out: new tensors, those with heads laid out as a linear map wants them. gradients.py decides when; where
there is no library it uses torch's operations. Told in docs/performance.md, "The native library".
"""

import ctypes as c
from typing import Any

import torch
from torch import Tensor

from qkv.kernels.build import library
from qkv.kernels.calling import threads_for

NUMBERS = {torch.float32}  # what a training on a CPU computes in
MUCH = 1 << 15             # numbers that keep a second thread busy
ROWS = 64                  # at most, whose sums are added up by one thread


class Heads(c.Structure):
    """(batch, heads, length, width) and the strides of what comes in, of its gradient and of what goes out."""

    _fields_ = [(name, c.c_int32) for name in ("batch", "heads", "length", "width")] + [
        (name, c.c_int64 * 3) for name in ("x", "grad", "out")]  # fmt: skip


def is_native(x: Tensor) -> bool:
    return x.dtype in NUMBERS and x.device.type == "cpu" and library(x.dtype) is not None


def lib_of(x: Tensor) -> Any:
    return library(x.dtype)


def as_heads(x: Tensor) -> Tensor:
    """Any (..., width) as (batch, heads, length, width), numbers of a row side by side."""
    if x.dim() != 4:
        rows = x.numel() // x.shape[-1]
        length = next(n for n in range(ROWS, 0, -1) if rows % n == 0)
        x = x.reshape(-1, 1, length, x.shape[-1])
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()  # the gradient of a sum is one number, seen everywhere


def laid_out(x: Tensor) -> Tensor:
    """Room for (batch, heads, length, width), the heads of a token side by side in memory."""
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)


def shapes(x: Tensor, grad: Tensor, out: Tensor) -> Any:
    return c.byref(Heads(*x.shape, *((c.c_int64 * 3)(*one.stride()[:3]) for one in (x, grad, out))))


def turned(x: Tensor, cos: Tensor, sin: Tensor, way: int) -> Tensor:
    """(batch, heads, length, width), turned by (batch or 1, 1, length, half); way -1 turns back."""
    x, cos, sin = as_heads(x), cos.contiguous(), sin.contiguous()
    out = laid_out(x)
    by_batch, threads = cos.stride(0) if len(cos) > 1 else 0, threads_for(x.numel(), MUCH)
    lib_of(x).qkv_turn(shapes(x, x, out), x.data_ptr(), cos.data_ptr(), sin.data_ptr(), by_batch, cos.shape[-1], way, threads, out.data_ptr())
    return out


def can_turn(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether there is an angle for each place."""
    return is_native(x) and x.dim() == 4 and cos.shape == sin.shape and len(cos) in (1, len(x)) and cos.shape[2] == x.shape[2]


def relu_squared(x: Tensor) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    lib_of(x).qkv_relu_squared(x.data_ptr(), x.numel(), threads_for(x.numel(), MUCH), out.data_ptr())
    return out


def relu_squared_back(x: Tensor, grad: Tensor) -> Tensor:
    x, grad = x.contiguous(), grad.contiguous()
    out = torch.empty_like(x)
    lib_of(x).qkv_relu_squared_back(x.data_ptr(), grad.data_ptr(), x.numel(), threads_for(x.numel(), MUCH), out.data_ptr())
    return out


def rms(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normed x, and 1 / root of each row."""
    there = as_heads(x)
    out, shrinks = laid_out(there), x.new_empty(there.shape[:3])
    lib_of(x).qkv_rms(shapes(there, there, out), there.data_ptr(), gain.data_ptr(), eps, threads_for(x.numel(), MUCH),
                      out.data_ptr(), shrinks.data_ptr())
    return out.reshape(x.shape), shrinks


def rms_back(x: Tensor, gain: Tensor, shrinks: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the gain."""
    there, grad = as_heads(x), as_heads(grad)
    out, sums = laid_out(there), x.new_zeros(len(there), there.shape[3])
    lib_of(x).qkv_rms_back(shapes(there, grad, out), there.data_ptr(), gain.data_ptr(), shrinks.data_ptr(), grad.data_ptr(),
                           threads_for(x.numel(), MUCH), out.data_ptr(), sums.data_ptr())
    return out.reshape(x.shape), sums.sum(dim=0)
