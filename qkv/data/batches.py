"""Length-bucketed batches with a token budget, in a seeded order, and their padded tensors.

See docs/guides/data.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.data.random_numbers import random_stream
from qkv.errors import QkvError
from qkv.messages import _

__all__ = ["BatchPlan", "pair_batch"]

Rows = Sequence[Sequence[int] | np.ndarray]
Lengths = tuple[np.ndarray, np.ndarray]  # of sources and targets, with special tokens


def batch_number(step: int, rank: int, world_size: int) -> int:
    """Return the number of the batch of one process at one step, from 0."""
    assert 0 <= rank < world_size and step >= 0
    return step * world_size + rank


class BatchPlan:
    """The batches of each step: a pure function of (seed, epoch, step, rank, world_size).

    Training therefore resumes from the step number alone. Pairs are sorted into length buckets and
    split into batches once. Each epoch shuffles pairs of equal lengths and the order of the
    batches, so every epoch has the same number of batches, `len(plan)`.

    Args:
        source_lengths: Per pair, special tokens included.
        target_lengths: Per pair, special tokens included; zeros for monolingual text.
        batch_tokens: The maximum of n_pairs * (longest source + longest target), padding included.
        seed: Determines the order.
        max_len: The maximum length of either side.

    Attributes:
        dropped: The indices of pairs that exceed `batch_tokens` or `max_len`.
        padding: The fraction of padding tokens.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        batch_tokens: int,
        seed: int,
        max_len: int | None = None,
    ):
        lengths = np.array([source_lengths, target_lengths], np.int64)  # (2, pairs)
        fits = lengths.sum(axis=0) <= batch_tokens
        fits &= lengths.max(axis=0) <= (max_len or batch_tokens)
        self.seed, self.dropped = seed, np.flatnonzero(~fits)
        self._kept = np.flatnonzero(fits)  # (kept,)
        if not len(self._kept):
            raise _no_pair_fits(len(fits), batch_tokens, max_len)
        self._bucket = _buckets(*lengths[:, fits])  # (kept,)
        lengths = lengths[:, self._kept[np.argsort(self._bucket, kind="stable")]]  # (2, kept)
        self._bounds = _bounds(lengths, batch_tokens)  # (batches + 1,)
        self.padding = _padding(lengths, self._bounds)
        self._epoch = lru_cache(maxsize=1)(self._shuffle)

    def __len__(self) -> int:
        """The number of batches of every epoch."""
        return len(self._bounds) - 1

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return all batches of an epoch in order, each as the indices of its pairs."""
        return [self.batch_at(epoch, index) for index in range(len(self))]

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Return the batch of one process at one step; a step consumes `world_size` batches.

        The last step of an epoch may continue with the first batches of the next epoch.
        """
        return self.batch_at(*divmod(batch_number(step, rank, world_size), len(self)))

    def batch_at(self, epoch: int, index: int) -> np.ndarray:
        """Return the batch of this index in an epoch."""
        pairs, order = self._epoch(epoch)
        batch = order[index]
        return pairs[self._bounds[batch] : self._bounds[batch + 1]]  # (batch,)

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs, shuffled within their buckets, and the order of the batches."""
        rng = random_stream(self.seed, epoch)
        shuffled = np.lexsort((rng.random_raw(len(self._kept)), self._bucket))
        order = np.argsort(rng.random_raw(len(self)), kind="stable")
        return self._kept[shuffled], order  # (kept,), (batches,)


class RoundRobinPlan:
    """Batches of several encodings of the same pairs (BPE-dropout), one epoch of each in rotation.

    Each encoding has its own BatchPlan; only the current one is in memory. `len(plan)` is the
    number of batches of one round through all encodings.

    Args:
        lengths: Returns the source and target lengths of an encoding.
        variants: The number of encodings.
        batch_tokens: As for BatchPlan, like the remaining arguments.
    """

    def __init__(
        self,
        lengths: Callable[[int], Lengths],
        variants: int,
        batch_tokens: int,
        seed: int,
        max_len: int | None = None,
    ):
        def make_plan(variant: int) -> BatchPlan:
            return BatchPlan(*lengths(variant), batch_tokens, seed, max_len)

        self._plan = lru_cache(maxsize=1)(make_plan)
        self.ends = np.cumsum([len(self._plan(variant)) for variant in range(variants)])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def variant(self, step: int, rank: int = 0, world_size: int = 1) -> int:
        """Return the encoding of the batch of one process at one step."""
        index = batch_number(step, rank, world_size) % len(self)
        return int(np.searchsorted(self.ends, index, side="right"))

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> np.ndarray:
        """Return the batch of one process at one step."""
        number = batch_number(step, rank, world_size)
        (rounds, index), variant = divmod(number, len(self)), self.variant(number)
        plan, epoch = self._plan(variant), rounds * len(self.ends) + variant
        return plan.batch_at(epoch, index - int(self.ends[variant]) + len(plan))


@dataclass(frozen=True)
class PairBatch:
    """A batch for teacher forcing: the decoder reads target_in and predicts target_out."""

    source: Tensor  # (batch, source): x <eos>
    target_in: Tensor  # (batch, target): <bos> y
    target_out: Tensor  # (batch, target): y <eos>
    gold: Tensor | None = None  # (batch, target, source): attention weights of the guided head

    def twice(self) -> "PairBatch":
        """Return the batch with every pair repeated, for R-Drop."""
        tensors = {name: tensor for name, tensor in vars(self).items() if tensor is not None}
        return replace(self, **{name: torch.cat([ids, ids]) for name, ids in tensors.items()})


def pair_batch(sources: Rows, targets: Rows, pad_id: int, bos_id: int, eos_id: int) -> PairBatch:
    """Collate rows of ids; positions with pad_id are padding."""
    return PairBatch(
        source=collate(sources, pad_id, last=eos_id),
        target_in=collate(targets, pad_id, first=bos_id),
        target_out=collate(targets, pad_id, last=eos_id),
    )


def collate(rows: Rows, pad_id: int, first: int | None = None, last: int | None = None) -> Tensor:
    """Pad rows on the right: collate([[5, 6], [7]], 0).tolist() == [[5, 6], [7, 0]].

    Args:
        rows: The ids of each row.
        pad_id: The padding id.
        first: An id before each row.
        last: An id after each row.
    """
    begin = int(first is not None)
    width = begin + max(map(len, rows), default=0) + int(last is not None)
    ids = np.full((len(rows), width), pad_id, np.int64)  # (batch, length)
    if first is not None:
        ids[:, 0] = first
    for padded, row in zip(ids, rows, strict=True):
        padded[begin : begin + len(row)] = row
        if last is not None:
            padded[begin + len(row)] = last
    return torch.from_numpy(ids)


def _buckets(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return a bucket number per pair of lengths, ordered so that neighbors need little padding.

    Sorted by target length, then by source length, alternately ascending and descending, so that
    source lengths are similar where the target length changes.
    """
    band = np.unique(target, return_inverse=True)[1]  # (kept,)
    width = int(source.max()) + 1
    within = np.where(band % 2 == 0, source, width - 1 - source)  # (kept,)
    return band * width + within


def _bounds(lengths: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Return the start of each batch and the end; each takes as many pairs as the budget allows."""
    bounds = [0]
    while (start := bounds[-1]) < lengths.shape[1]:
        end = start + batch_tokens // max(1, lengths[:, start].sum())  # an upper bound
        longest = np.maximum.accumulate(lengths[:, start:end], axis=1).sum(axis=0)
        cost = longest * np.arange(1, len(longest) + 1)  # of the first 1, 2, 3 ... pairs
        bounds.append(start + int(np.searchsorted(cost, batch_tokens, side="right")))
    return np.array(bounds)


def _padding(lengths: np.ndarray, bounds: np.ndarray) -> float:
    """Return the fraction of padding among all tokens of an epoch."""
    longest = np.maximum.reduceat(lengths, bounds[:-1], axis=1).sum(axis=0)  # (batches,)
    return 1 - float(lengths.sum() / max(1, (longest * np.diff(bounds)).sum()))


def _no_pair_fits(n: int, batch_tokens: int, max_len: int | None) -> QkvError:
    values = {"n_pairs": n, "batch_tokens": batch_tokens, "max_len": max_len}
    wrong = (
        _("none of {n_pairs:,} pairs fits batch_tokens {batch_tokens:,}", **values)
        if max_len is None
        else _(
            "none of {n_pairs:,} pairs fits batch_tokens {batch_tokens:,} and max_len {max_len:,}",
            **values,
        )
    )
    return QkvError("batch_tokens", wrong, _("raise the limit or shorten the sentences"))
