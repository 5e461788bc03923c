"""How good sentence vectors are: do near vectors mean the same, and are they spread out?

In: vectors, one a row, and what people said of them. Out: correlations with people's scores, how often the right
partner is found, and how close partners are and how evenly all are spread. Told in docs/embedding.md, "Scores".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROWS = 1_024  # compared at a time: (rows, all) numbers are held
SAME = 1e-6  # two similarities closer than this differ by rounding only
RANKS = (1, 5, 10)

Array = np.ndarray


def unit(vectors: Array) -> Array:
    """Every row brought to length one; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)


def cosines(a: Array, b: Array) -> Array:
    """The cosine of each row of a with the same row of b, (n,)."""
    return (unit(a) * unit(b)).sum(axis=1)


# ── Against people's scores ──────────────────────────────────────────────────────────────────────────────────────
def pearson(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Whether two lists rise and fall together on a line; nan where one of them never changes."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    x, y = (np.asarray(one, np.float64) - np.mean(one) for one in (a, b))
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def spearman(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """The same of their ranks: only the order counts."""
    return pearson(ranks(a), ranks(b))


def ranks(values: Sequence[float] | Array) -> Array:
    """1 for the smallest; equal values share the mean of their places.

    >>> ranks([3.0, 1.0, 3.0]).tolist()
    [2.5, 1.0, 2.5]
    """
    _, which, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the place of the last of each value
    return (last - (counts - 1) / 2)[which]


# ── Finding the partner ──────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Retrieval:
    """Of n sentences of one side, which share finds its partner among the n of the other within so many places."""

    n: int
    at: dict[int, float]  # rank -> share
    mrr: float  # the mean of 1 / place


def retrieval(a: Array, b: Array) -> Retrieval:
    """Row i of a looks for row i of b among all of b by cosine; among equals, chance decides, so its mean is told."""
    better, equal = rivals(a, b)  # (n,), (n,)
    shares = {k: float(np.clip((k - better) / (equal + 1), 0, 1).mean()) for k in RANKS}
    sums = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, len(a) + 1))])  # 1 + 1/2 + ... + 1/n
    mrr = (sums[better + equal + 1] - sums[better]) / (equal + 1)
    return Retrieval(len(a), shares, float(mrr.mean()))


def rivals(a: Array, b: Array) -> tuple[Array, Array]:
    """For each row how many others of b are nearer to it than its partner, and how many are as near."""
    a, b, found = unit(a), unit(b), []
    for start in range(0, len(a), ROWS):
        scores = a[start : start + ROWS] @ b.T  # (rows, n)
        own = scores[np.arange(len(scores)), start + np.arange(len(scores))][:, None]
        better, as_good = (scores > own + SAME).sum(axis=1), (scores >= own - SAME).sum(axis=1)
        found.append((better, as_good - better - 1))  # the partner is no rival
    return np.concatenate([one for one, _ in found]), np.concatenate([one for _, one in found])


def nearest(vectors: Array, queries: Array, k: int) -> tuple[Array, Array]:
    """The k rows of `vectors` with the largest product with each query: which, and how large, both (queries, k)."""
    k = min(k, len(vectors))
    which, best = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), 64 * ROWS):  # `vectors` may lie on disk
        scores = queries @ np.asarray(vectors[start : start + 64 * ROWS]).T
        rows = np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)
        which, best = np.concatenate([which, rows], axis=1), np.concatenate([best, scores], axis=1)
        kept = np.argpartition(-best, min(k, best.shape[1]) - 1, axis=1)[:, :k]
        which, best = np.take_along_axis(which, kept, 1), np.take_along_axis(best, kept, 1)
    order = np.lexsort((which, -best), axis=1)  # equal scores: the earlier row first
    return np.take_along_axis(which, order, 1), np.take_along_axis(best, order, 1)


# ── The shape of the space (Wang and Isola, 2020) ────────────────────────────────────────────────────────────────
def alignment(a: Array, b: Array) -> float:
    """The mean squared distance of partners on the unit sphere; 0 is best."""
    return float(((unit(a) - unit(b)) ** 2).sum(axis=1).mean())


def uniformity(vectors: Array) -> float:
    """log of the mean of exp(-2 distance^2) over all pairs; 0: all in one point; the lower, the better spread."""
    x, total = unit(vectors).astype(np.float64), 0.0
    if len(x) < 2:
        return float("nan")
    for start in range(0, len(x), ROWS):
        squared = np.maximum(
            2 - 2 * (x[start : start + ROWS] @ x.T), 0
        )  # |a - b|^2 of unit vectors
        total += float(np.exp(-2 * squared).sum())
    return float(
        np.log((total - len(x)) / (len(x) * (len(x) - 1)))
    )  # a vector and itself are no pair
