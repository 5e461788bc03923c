"""Derive a torch seed from the recipe's seed and the training step. See docs/guides/training.md."""

import numpy as np


def derive_seed(seed: int, *indices: int) -> int:
    """A 32-bit seed that depends on all of these non-negative numbers, such as (seed, step).

    Torch's CPU generator uses only the lowest 32 bits of a seed: combining the numbers by shifting
    would ignore the recipe's seed.
    """
    return int(np.random.SeedSequence([seed, *indices]).generate_state(1)[0])
