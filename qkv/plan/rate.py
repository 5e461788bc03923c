"""GFLOP/s of a float32 matrix product on this machine, an upper bound for training."""

import time


def measured_gflops(seconds: float = 0.5, size: int = 1_024) -> float:
    """The fastest product within `seconds`; other processes only make one slower."""
    import torch

    a, b = torch.ones(size, size), torch.ones(size, size)
    a @ b  # the first call starts the threads
    best, end = float("inf"), time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or best == float("inf"):
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best / 1e9
