"""Freed memory stays with the process, so that the next step need not ask the system for it again.

In: nothing. Out: a setting of the C library. The page faults of big temporary tensors cost as much as the arithmetic
on a CPU, and the more so the smaller the model is. Told in docs/performance.md, "The allocator".
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's mallopt
LARGEST = 2**31 - 1  # bytes: larger blocks are still given back


def keep_pages() -> None:
    """Call it once, before torch is imported; where there is no glibc it does nothing."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, LARGEST)
