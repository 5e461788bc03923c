"""Set glibc's malloc to keep freed memory in the process instead of returning it to the system.

Page faults of large temporary tensors cost as much as the arithmetic on a CPU, and relatively
more for smaller models. See docs/explanation/performance.md, "Memory allocator".
"""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's mallopt
MAX_KEPT_BYTES = 2**31 - 1  # larger blocks are still returned to the system


def keep_pages() -> None:
    """Call once, before torch is imported; does nothing without glibc."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, MAX_KEPT_BYTES)
