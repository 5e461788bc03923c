"""Evaluation of sentence embeddings: Pearson and Spearman correlation, recall@k, MRR, alignment.

Vectors are the rows of a matrix. See docs/guides/embeddings.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCK_ROWS = 1_024  # rows of the similarity matrix that are computed at a time
TIE_TOLERANCE = 1e-6  # similarities that differ by less are equal up to rounding
RECALL_AT = (1, 5, 10)

Array = np.ndarray
Values = Sequence[float] | Array


def unit(vectors: Array) -> Array:
    """Each row divided by its L2 norm; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def cosines(a: Array, b: Array) -> Array:
    """The cosine of each row of a with the same row of b, (n,)."""
    return (unit(a) * unit(b)).sum(axis=1)


# ── Correlation with human scores ──────────────────────────────────────────────────────────────
def pearson(a: Values, b: Values) -> float:
    """Pearson's correlation; nan if a or b is constant."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    x, y = (np.asarray(values, np.float64) - np.mean(values) for values in (a, b))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def spearman(a: Values, b: Values) -> float:
    """Spearman's correlation: Pearson's correlation of the ranks."""
    return pearson(average_ranks(a), average_ranks(b))


def average_ranks(values: Values) -> Array:
    """The rank of each value, 1 for the smallest; equal values get the mean of their ranks.

    >>> average_ranks([3.0, 1.0, 3.0]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the rank of the last of each value
    return (last - (counts - 1) / 2)[which]


# ── Retrieval ──────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Retrieval:
    """Retrieval of each of n sentences' translation (or paraphrase) among n candidates."""

    n: int
    recall_at: dict[int, float]  # k -> fraction whose partner is among the k nearest
    mrr: float  # mean reciprocal rank


def retrieval(a: Array, b: Array) -> Retrieval:
    """Retrieve row i of b by row i of a, by cosine; tied candidates count in expectation."""
    closer, tied = count_distractors(a, b)  # (n,), (n,)
    recalls = {k: float(np.clip((k - closer) / (tied + 1), 0, 1).mean()) for k in RECALL_AT}
    sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(a) + 1))])  # 1 + 1/2 + ... + 1/n
    mrr = (sums[closer + tied + 1] - sums[closer]) / (tied + 1)
    return Retrieval(len(a), recalls, float(mrr.mean()))


def count_distractors(a: Array, b: Array) -> tuple[Array, Array]:
    """For each row of a, how many rows of b are closer than its partner, and how many are tied."""
    a, b, counts = unit(a), unit(b), []
    for start in range(0, len(a), BLOCK_ROWS):
        scores = a[start : start + BLOCK_ROWS] @ b.T  # (rows, n)
        partner = scores[np.arange(len(scores)), start + np.arange(len(scores))][:, None]
        closer = (scores > partner + TIE_TOLERANCE).sum(axis=1)
        as_close = (scores >= partner - TIE_TOLERANCE).sum(axis=1)
        counts.append((closer, as_close - closer - 1))  # without the partner
    closer, tied = np.concatenate(counts, axis=1)
    return closer, tied


def nearest(vectors: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """Exact top-k search by dot product: the row numbers and the scores, both (queries, k)."""
    k = min(k, len(vectors))
    which, best = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), 64 * BLOCK_ROWS):  # `vectors` may be memory-mapped
        scores = queries @ np.asarray(vectors[start : start + 64 * BLOCK_ROWS]).T
        rows = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        which, best = np.concatenate([which, rows], axis=1), np.concatenate([best, scores], axis=1)
        kept = np.argpartition(-best, min(k, best.shape[1]) - 1, axis=1)[:, :k]
        which, best = np.take_along_axis(which, kept, 1), np.take_along_axis(best, kept, 1)
    order = np.lexsort((which, -best), axis=1)  # equal scores: the earlier row first
    return np.take_along_axis(which, order, 1), np.take_along_axis(best, order, 1)


# ── Alignment and uniformity (Wang and Isola, 2020) ────────────────────────────────────────────
def alignment(a: Array, b: Array) -> float:
    """The mean squared distance of partners on the unit sphere; 0 is best."""
    return float(((unit(a) - unit(b)) ** 2).sum(axis=1).mean())


def uniformity(vectors: Array) -> float:
    """log of the mean of exp(-2 distance^2) over all pairs; lower is more uniform."""
    x, total = unit(vectors).astype(np.float64), 0.0
    if len(x) < 2:
        return float("nan")
    for start in range(0, len(x), BLOCK_ROWS):
        # |a - b|^2 = 2 - 2 a.b for unit vectors
        squared = np.maximum(2 - 2 * (x[start : start + BLOCK_ROWS] @ x.T), 0)
        total += float(np.exp(-2 * squared).sum())
    # without the pairs of a vector with itself
    return float(np.log((total - len(x)) / (len(x) * (len(x) - 1))))
