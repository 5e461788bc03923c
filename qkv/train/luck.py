"""Luck that can be repeated: a seed for torch from the recipe's seed and a place in the run.

In: whole numbers, none negative. Out: 32 bits that depend on all of them. Torch's generator on a CPU reads no more than the
lowest 32 bits of a seed, so numbers joined by shifting would leave the recipe's own unread. Told in docs/training.md,
"Stopping and resuming".
"""

import numpy as np


def luck_at(seed: int, *place: int) -> int:
    """The seed of all draws at this place, such as a step."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0])
