"""Hold-out split: the lines of a training file used for validation if no validation file is given.

One line of 100, evenly spaced, at most 1,000; below 200 lines, one line of 10.
"""

MIN_LINES = 10  # the smallest file with a held-out line


def hold_out_every(count: int) -> int:
    """Return n such that one of n lines is held out: 100 for 1,000 lines, 5,000 for 5,000,000."""
    return max(100, -(-count // 1_000)) if count >= 200 else MIN_LINES


def is_held_out(index: int, every: int) -> bool:
    """Return whether a line is held out: the middle one of each `every` lines."""
    return index % every == every // 2


def in_subset(index: int, every: int, held_out: bool) -> bool:
    """Return whether a line is in a subset: held-out lines, or the others; every 0: all lines."""
    return not every or is_held_out(index, every) == held_out
