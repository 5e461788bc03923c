"""How fast this machine multiplies matrices.

In: nothing. Out: GFLOP/s of a float32 product, measured in half a second; no training can be faster than this.
Told in docs/cost.md, "Time".
"""

import time


def measured_gflops(seconds: float = 0.5, size: int = 1_024) -> float:
    """The best of the products that fit into the time: others' load only ever slows one down."""
    import torch

    a, b = torch.ones(size, size), torch.ones(size, size)
    a @ b  # the first call wakes the threads
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or best == float("inf"):
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9
