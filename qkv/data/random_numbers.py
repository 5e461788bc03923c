"""Random numbers that are the same in every version of numpy: raw draws and a hash.

numpy guarantees its raw draws, but not its shuffles.
"""

from typing import TypeVar

import numpy as np

Integers = TypeVar("Integers", int, np.ndarray)


def random_stream(*seeds: int) -> np.random.Philox:
    """Return the generator of these seeds; `random_raw` draws 64-bit integers."""
    return np.random.Philox(np.random.SeedSequence(seeds))


def mix_bits(x: Integers) -> Integers:
    """Hash 64-bit integers with the finalizer of splitmix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31
