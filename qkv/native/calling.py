"""How tensors are handed to the native library.

In: a tensor, an amount of work. Out: its address, and how many threads the work is worth. Told in docs/performance.md,
"The native library".
"""

import torch
from torch import Tensor


def address(tensor: Tensor | None, dtype: torch.dtype | None = None) -> int | None:
    """Where the numbers stand, without gaps, of the type that is read there; None is the null pointer."""
    assert tensor is None or (tensor.is_contiguous() and dtype in (None, tensor.dtype))
    return None if tensor is None else tensor.data_ptr()


def threads_for(work: int, much: int) -> int:
    """A second thread costs a meeting after every part: less than `much` is done alone."""
    return torch.get_num_threads() if work >= much else 1
