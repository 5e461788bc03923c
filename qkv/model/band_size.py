"""When a sliding window is computed in blocks, and how many pairs are computed; without torch.

See docs/explanation/model.md, "Sliding window".
"""


def is_banded(n_keys: int, window: int, causal: bool) -> bool:
    """Whether blocks of queries need fewer keys than all: 2 blocks of keys, or 3 if not causal."""
    return n_keys > (2 if causal else 3) * window


def n_pairs(length: int, window: int | None, causal: bool) -> int:
    """Pairs of query and key that attention computes; masked ones are counted too.

    In blocks of `window` queries, each block needs its keys and those of the block before, and
    after if not causal; the first block of a causal layer has none before it.

    >>> n_pairs(8, None, True), n_pairs(8, 2, True), n_pairs(8, 2, False)
    (64, 28, 48)
    """
    if window is None or not is_banded(length, window, causal):
        return length * length
    blocks = -(-length // window)
    return window * window * (2 * blocks - 1 if causal else 3 * blocks)
