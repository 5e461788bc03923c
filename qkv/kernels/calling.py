"""How tensors are passed to the native library, and how many threads an operation uses.

Explained in docs/performance.md, "The native library" and "Threads".
"""

import torch
from torch import Tensor

from qkv.kernels.build import library
from qkv.threads import available_threads, thread_limit


def address(tensor: Tensor | None, dtype: torch.dtype | None = None) -> int | None:
    """Where the numbers stand, without gaps, of the type that is read there; None is the null pointer."""
    assert tensor is None or (tensor.is_contiguous() and dtype in (None, tensor.dtype))
    return None if tensor is None else tensor.data_ptr()


def threads_for(work: int, min_work: int) -> int:
    """Threads of an operation of training, whose sums depend on them: torch's number, or one for less than `min_work`."""
    return torch.get_num_threads() if work >= min_work else 1


def inference_threads_for(work: int, min_work: int) -> int:
    """Threads of an operation whose digits do not depend on them: fewer while other processes are busy."""
    return available_threads(thread_limit()) if work >= min_work else 1


def can_be_native(weight: Tensor) -> bool:
    """Whether these numbers are for it, and a compiler has made it."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and library(weight.dtype) is not None
