"""Hold-out split: the pairs or groups used for validation if no validation file is given.

One of 100, evenly spaced, at most 1,000; below 200, one of 10. Rows that share a text, directly or
through other rows, are on the same side of the split, so no text of a held-out row is trained on.
"""

import hashlib
from collections.abc import Iterable
from itertools import islice

import numpy as np

from qkv.errors import QkvError
from qkv.messages import _

MIN_LINES = 10  # the smallest file with a held-out line
HASH_BYTES = 8  # equal hashes of different texts only put their rows on the same side


def hold_out_every(count: int) -> int:
    """Return n such that one of n lines is held out: 100 for 1,000 lines, 5,000 for 5,000,000."""
    return max(100, -(-count // 1_000)) if count >= 200 else MIN_LINES


def held_out_rows(rows: Iterable[Iterable[str]], name: str, valid_option: str) -> np.ndarray:
    """Return which rows are held out, as booleans; a row is a pair or a group of texts.

    Of each `hold_out_every` rows it is the one that shares texts with the fewest other rows, and of
    these the middle one; the rows that it shares texts with are held out too.

    Args:
        rows: The texts of each row, without surrounding spaces.
        name: The files, for error messages.
        valid_option: The option that gives held-out files instead.
    """
    groups = connected_rows(rows)  # (rows,)
    count = len(groups)
    if count < MIN_LINES:
        wrong = _("only {count} pairs, too few to hold some out for validation", count=count)
        right = _("give at least {least}, or {option}", least=MIN_LINES, option=valid_option)
        raise QkvError(name, wrong, right)
    chosen = _chosen_groups(groups, hold_out_every(count))
    if not chosen:
        wrong = _("no pairs can be held out: most pairs share a text, directly or through others")
        raise QkvError(name, wrong, _("give {option}", option=valid_option))
    return np.isin(groups, chosen)


def _chosen_groups(groups: np.ndarray, every: int) -> list[int]:
    """Return the groups of connected rows to hold out, at most one row of `every` in all."""
    sizes = np.bincount(groups)[groups]  # (rows,)
    allowed = len(range(every // 2, len(groups), every))  # the number of rows to hold out
    chosen: list[int] = []
    for start in range(0, every * allowed, every):
        block = np.arange(start, min(start + every, len(groups)))
        block = block[~np.isin(groups[block], chosen)] if sizes[block].max() > 1 else block
        if len(block):
            distances = np.abs(block - (start + every // 2))
            best = block[np.lexsort((block, distances, sizes[block]))[0]]
            if sizes[best] <= allowed:
                chosen.append(int(groups[best]))
                allowed -= int(sizes[best])
    if not chosen and sizes.min() <= len(groups) // 2:
        chosen.append(int(groups[sizes.argmin()]))
    return chosen


def connected_rows(rows: Iterable[Iterable[str]]) -> np.ndarray:
    """Return a number per row, equal for rows that share a text, directly or through other rows.

    Union-find over the hashes of the texts that occur more than once.
    """
    hashes, lengths = _hashes(rows)
    parents = np.arange(len(lengths))
    owners = np.repeat(parents, lengths)  # the row of each text
    _texts, texts, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    repeated = np.flatnonzero(counts[texts] > 1)
    parent: list[int] = parents.tolist()
    first: dict[int, int] = {}  # text -> the first row that has it
    for text, row in zip(texts[repeated].tolist(), owners[repeated].tolist(), strict=True):
        one, other = _root(parent, first.setdefault(text, row)), _root(parent, row)
        parent[max(one, other)] = min(one, other)
    shared = np.unique(owners[repeated])
    parents[shared] = [_root(parent, row) for row in shared.tolist()]
    return parents


def _root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        parent[row] = parent[parent[row]]  # path halving
        row = parent[row]
    return row


def _hashes(rows: Iterable[Iterable[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of all texts, and the number of texts of each row."""
    lengths: list[int] = []

    def digests(texts: Iterable[str]) -> bytes:
        found = [hashlib.blake2b(text.encode(), digest_size=HASH_BYTES).digest() for text in texts]
        lengths.append(len(found))
        return b"".join(found)

    remaining, parts = map(digests, rows), []
    while part := b"".join(islice(remaining, 65_536)):
        parts.append(np.frombuffer(part, np.uint64))
    return np.concatenate([*parts, np.zeros(0, np.uint64)]), np.array(lengths, np.int64)
