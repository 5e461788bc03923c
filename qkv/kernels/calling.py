"""Calling the native library: when it is used, with how many threads, and tensor addresses.

See docs/performance.md.
"""

import ctypes as c
from typing import Any

import torch
from torch import Tensor

from qkv.kernels.build import library
from qkv.threads import available_threads, thread_limit

NATIVE_DTYPES = {torch.float32}  # the tests use the C++ in float64 too
MIN_ELEMENTS_FOR_THREADS = 1 << 15  # in training: with fewer, one thread is faster
MAX_ROWS_PER_BATCH = 64  # rows of a tensor that are treated as one batch element


# ── Conditions ───────────────────────────────────────────────────────────────────────────────────
def is_cpu_float(x: Tensor) -> bool:
    """Whether x is float32 or float64 on the CPU."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def use_custom_gradient(x: Tensor) -> bool:
    """Whether to use our own gradient: in training on a CPU, except under torch.compile."""
    return is_cpu_float(x) and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def can_be_native(x: Tensor) -> bool:
    """Whether the native library supports this dtype and device, and has been built."""
    return x.device.type == "cpu" and x.dtype in NATIVE_DTYPES and library(x.dtype) is not None


def native(x: Tensor) -> c.CDLL:
    """The library for the dtype of x; call it only if `can_be_native(x)`."""
    lib = library(x.dtype)
    assert lib is not None
    return lib


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────
def training_threads(x: Tensor) -> int:
    """Threads in training: torch's number, whatever the load; one for few elements."""
    return torch.get_num_threads() if x.numel() >= MIN_ELEMENTS_FOR_THREADS else 1


def inference_threads_for(work: int, min_work: int) -> int:
    """Threads where results do not depend on their number: fewer while other processes run."""
    return available_threads(thread_limit()) if work >= min_work else 1


# ── Tensors ──────────────────────────────────────────────────────────────────────────────────────
def address(tensor: Tensor | None, dtype: torch.dtype | None = None) -> int | None:
    """The address of a contiguous tensor of this dtype; None: null pointer."""
    assert tensor is None or (tensor.is_contiguous() and dtype in (None, tensor.dtype))
    return None if tensor is None else tensor.data_ptr()


class HeadLayout(c.Structure):
    """The structure of heads.h: a shape, and the strides of input, gradient and output."""

    _fields_ = [
        *((name, c.c_int32) for name in ("batch", "heads", "length", "width")),
        *((name, c.c_int64 * 3) for name in ("x", "grad", "out")),
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
