"""When kernels use their own gradients and the C++, with how many threads, and how it is called.

Explained in docs/performance.md, "The native library" and "Threads".
"""

import ctypes as c
from typing import Any

import torch
from torch import Tensor

from qkv.kernels.build import library
from qkv.threads import available_threads, thread_limit

NATIVE_DTYPES = {torch.float32}  # the tests use the C++ in float64 too
MIN_ELEMENTS_FOR_THREADS = 1 << 15  # in training: with fewer a second thread does not pay
MAX_ROWS_PER_BATCH = 64  # rows whose sums one thread adds up


# ── When ─────────────────────────────────────────────────────────────────────────────────────────
def is_cpu_float(x: Tensor) -> bool:
    """Whether sums may be taken in this type, and in our own loops."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def custom_gradient_pays(x: Tensor) -> bool:
    """Whether to use our own gradient: in training on a CPU (torch.compile fuses by itself)."""
    return is_cpu_float(x) and torch.is_grad_enabled() and not torch.compiler.is_compiling()


def can_be_native(x: Tensor) -> bool:
    """Whether the C++ computes in this type, and a compiler has built it."""
    return x.device.type == "cpu" and x.dtype in NATIVE_DTYPES and library(x.dtype) is not None


def native(x: Tensor) -> c.CDLL:
    """The library that computes in the type of x; call it only if `can_be_native(x)`."""
    lib = library(x.dtype)
    assert lib is not None
    return lib


# ── Threads ──────────────────────────────────────────────────────────────────────────────────────
def training_threads(x: Tensor) -> int:
    """Threads in training: torch's number whatever the load, one for few elements."""
    return torch.get_num_threads() if x.numel() >= MIN_ELEMENTS_FOR_THREADS else 1


def inference_threads_for(work: int, min_work: int) -> int:
    """Threads where the digits do not depend on them: fewer while other processes are busy."""
    return available_threads(thread_limit()) if work >= min_work else 1


# ── Tensors ──────────────────────────────────────────────────────────────────────────────────────
def address(tensor: Tensor | None, dtype: torch.dtype | None = None) -> int | None:
    """The address of a contiguous tensor of the type that is read there; None: null pointer."""
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
    """(..., width) as (batch, heads, length, width) whose rows have no gaps, copied if need be."""
    if x.dim() != 4:
        rows = x.numel() // x.shape[-1]
        length = next(n for n in range(MAX_ROWS_PER_BATCH, 0, -1) if rows % n == 0)
        x = x.reshape(-1, 1, length, x.shape[-1])
    has_gaps = x.stride(3) != 1 and x.shape[3] != 1  # for example the gradient of a sum: stride 0
    return x.contiguous() if has_gaps else x


def empty_heads_like(x: Tensor) -> Tensor:
    """Of the same shape, stored as (batch, length, heads, width): joining heads copies nothing."""
    batch, heads, length, width = x.shape
    return x.new_empty(batch, length, heads, width).transpose(1, 2)
