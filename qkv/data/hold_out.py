"""The hold-out rule: which lines of a training file are kept for validation where no validation file is given.

One of 100 lines, spread over the file, at most 1,000 in all; of fewer than 200 lines one of 10.
"""

FEWEST = 10  # lines of which one can be held out


def hold_out_every(count: int) -> int:
    """Of `count` lines, one in so many is held out: 10 of 1,000 (100), 1,000 of 5,000,000 (5,000), 2 of 20 (10)."""
    return max(100, -(-count // 1_000)) if count >= 200 else FEWEST


def is_held_out(index: int, every: int) -> bool:
    """Whether the line of this index is held out, in the middle of each `every` lines."""
    return index % every == every // 2
