"""Custom gradients: when they are used, with how many threads, and the layout of heads.

See docs/explanation/performance.md.
"""

import ctypes as c
from typing import Any

import torch
from torch import Tensor

MIN_ELEMENTS_FOR_THREADS = 1 << 15  # in training: with fewer, one thread is faster
MAX_ROWS_PER_BATCH = 64  # rows of a tensor that are treated as one batch element


# ── Conditions ───────────────────────────────────────────────────────────────────────────────────
def is_cpu_float(x: Tensor) -> bool:
    """Whether x is float32 or float64 on the CPU."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def use_custom_gradient(x: Tensor) -> bool:
    """Whether to use our own gradient: in training on a CPU, except under torch.compile."""
    return is_cpu_float(x) and torch.is_grad_enabled() and not torch.compiler.is_compiling()


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────
def training_threads(x: Tensor) -> int:
    """Threads in training: torch's number, whatever the load; one for few elements."""
    return torch.get_num_threads() if x.numel() >= MIN_ELEMENTS_FOR_THREADS else 1


# ── Tensors ──────────────────────────────────────────────────────────────────────────────────────
class HeadLayout(c.Structure):
    """The structure of heads.h: a shape, and the strides of input, gradient and output."""

    _fields_ = [
        ("batch", c.c_int32),
        ("heads", c.c_int32),
        ("length", c.c_int32),
        ("width", c.c_int32),
        ("x", c.c_int64 * 3),
        ("grad", c.c_int64 * 3),
        ("out", c.c_int64 * 3),
    ]


def head_layout(x: Tensor, grad: Tensor, out: Tensor) -> Any:
    """A pointer to the layout of three tensors (batch, heads, length, width) of one shape."""
    strides = ((c.c_int64 * 3)(*tensor.stride()[:3]) for tensor in (x, grad, out))
    return c.byref(HeadLayout(*x.shape, *strides))


def as_heads(x: Tensor) -> Tensor:
    """(..., width) as (batch, heads, length, width) with contiguous rows, copied if necessary."""
    if x.dim() != 4:
        rows = x.numel() // x.shape[-1]
        length = next(n for n in range(MAX_ROWS_PER_BATCH, 0, -1) if rows % n == 0)
        x = x.reshape(-1, 1, length, x.shape[-1])
    strided = x.stride(3) != 1 and x.shape[3] != 1  # as the gradient of a sum: stride 0
    return x.contiguous() if strided else x


def empty_heads_like(x: Tensor) -> Tensor:
    """Of the same shape, stored as (batch, length, heads, width): joining heads is a view."""
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)
