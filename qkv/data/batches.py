"""Which sentences go together, and in which order; and the tensors they become.

In: the lengths of all sentences, a token budget, a seed. Out: the indices of any step's batch; (batch, length) ids.
Told in docs/data.md, "Batches".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import _

Rows = Sequence[Sequence[int]] | Sequence[np.ndarray]
Lengths = tuple[
    np.ndarray, np.ndarray
]  # of the sources and of the targets, special tokens included


class BatchPlan:
    """The order of training: a pure function of (seed, epoch, step, rank, world), so an integer resumes it.

    Lengths are those of the batch, special tokens included. A batch of n pairs costs n * (longest source + longest
    target) tokens, padding included, and this is at most `batch_tokens`. Pairs beyond it, or with a side beyond
    `max_len`, are left out and listed in `dropped`. For one-sided text, let the other side have length 0.

    Sentences are laid out by length and cut into batches once. What changes with the epoch is who sits where among
    those of equal lengths, and the order of the batches; so every epoch has the same number of batches, `len(plan)`.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        batch_tokens: int,
        seed: int,
        max_len: int | None = None,
    ):
        source, target = np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)
        assert source.shape == target.shape and source.ndim == 1, "every source has its target"
        longest = np.maximum(source, target)
        fits = (source + target <= batch_tokens) & (longest <= (max_len or batch_tokens))
        self.seed, self.dropped = seed, np.flatnonzero(~fits)
        self._kept = np.flatnonzero(fits)  # (kept,)
        if not len(self._kept):
            raise _nothing_fits(len(source), batch_tokens, max_len)
        self._cell = _cells(source[fits], target[fits])  # (kept,)
        laid = self._kept[np.argsort(self._cell, kind="stable")]  # (kept,)
        self._cuts = _cut(source[laid], target[laid], batch_tokens)  # (batches + 1,)
        self.padding = _padding(source[laid], target[laid], self._cuts)
        self._dealt: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of batches of every epoch."""
        return len(self._cuts) - 1

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """All batches of an epoch, in order, each as the indices of its sentences."""
        return [self.batch_of(epoch, place) for place in range(len(self))]

    def batch(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """The batch of one process at one step: a step uses up `world` batches, and epochs follow without a seam."""
        assert 0 <= rank < world and step >= 0
        return self.batch_of(*divmod(step * world + rank, len(self)))

    def batch_of(self, epoch: int, place: int) -> np.ndarray:
        """The batch at this place of an epoch."""
        if self._dealt is None or self._dealt[0] != epoch:
            self._dealt = (epoch, *self._deal(epoch))
        seated, turns = self._dealt[1:]
        turn = turns[place]
        return seated[self._cuts[turn] : self._cuts[turn + 1]]  # (batch,)

    def _deal(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Seats for the sentences and turns for the batches.

        Only raw draws are used: numpy promises that these stay the same in every version, unlike its shuffles.
        """
        draws = np.random.Philox(np.random.SeedSequence([self.seed, epoch]))
        seats = np.lexsort((draws.random_raw(len(self._kept)), self._cell))
        turns = np.argsort(draws.random_raw(len(self)), kind="stable")
        return self._kept[seats], turns  # (kept,), (batches,)


class TurnPlan:
    """Several encodings of the same pairs (BPE-dropout), an epoch of each in turn, each laid out by its own lengths.

    Of the plans only the one in use is held, of the others the number of their batches: `len(plan)` is that of a whole
    turn through all encodings. `lengths(variant)` gives the lengths of both sides.
    """

    def __init__(
        self,
        lengths: Callable[[int], Lengths],
        variants: int,
        batch_tokens: int,
        seed: int,
        max_len: int | None = None,
    ):
        def planned(variant: int) -> BatchPlan:
            return BatchPlan(*lengths(variant), batch_tokens, seed, max_len)

        self._planned = lru_cache(maxsize=1)(planned)
        self.ends = np.cumsum(
            [len(self._planned(variant)) for variant in range(variants)]
        )  # (variants,)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def variant(self, step: int, rank: int = 0, world: int = 1) -> int:
        """Which encoding the batch of one process at one step reads."""
        assert 0 <= rank < world and step >= 0
        return int(np.searchsorted(self.ends, (step * world + rank) % len(self), side="right"))

    def batch(self, step: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """Which pairs it reads."""
        turn, place = divmod(step * world + rank, len(self))
        variant = self.variant(step, rank, world)
        plan, epoch = self._planned(variant), turn * len(self.ends) + variant
        return plan.batch_of(epoch, place - int(self.ends[variant]) + len(plan))


@dataclass(frozen=True)
class PairBatch:
    """One step of teacher forcing: at each place the decoder reads target_in and should say target_out."""

    source: Tensor  # (batch, source): x <eos>
    target_in: Tensor  # (batch, target): <bos> y
    target_out: Tensor  # (batch, target): y <eos>
    gold: Tensor | None = (
        None  # (batch, target, source): where the guided head should look; None: no alignments
    )


def pair_batch(sources: Rows, targets: Rows, pad_id: int, bos_id: int, eos_id: int) -> PairBatch:
    """Rows of ids as the three tensors of a step; where ids == pad_id nobody is there."""
    return PairBatch(
        source=collate(sources, pad_id, last=eos_id),
        target_in=collate(targets, pad_id, first=bos_id),
        target_out=collate(targets, pad_id, last=eos_id),
    )


def collate(rows: Rows, pad_id: int, first: int | None = None, last: int | None = None) -> Tensor:
    """Rows side by side, padded on the right: collate([[5, 6], [7]], 0).tolist() == [[5, 6], [7, 0]].

    `first` and `last` stand before and after each row.
    """
    begin, n = int(first is not None), len(rows)
    lengths = np.fromiter(map(len, rows), np.int64, n)  # (batch,)
    width = begin + int(lengths.max(initial=0)) + int(last is not None)
    ids = np.full((n, width), pad_id, np.int64)  # (batch, length)
    place = np.arange(width) - begin  # (length,)
    if lengths.any():
        ids[(place >= 0) & (place < lengths[:, None])] = np.concatenate(
            [np.asarray(row, np.int64) for row in rows]
        )
    if first is not None:
        ids[:, 0] = first
    if last is not None:
        ids[np.arange(n), begin + lengths] = last
    return torch.from_numpy(ids)


def _cells(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """A number for each pair of lengths, such that neighbours need little padding.

    By target length; among equal targets by source length, upwards and downwards in turn, so that the last
    sentences of one target length and the first of the next have sources of one size.
    """
    band = np.unique(target, return_inverse=True)[1]  # (kept,)
    width = int(source.max()) + 1
    within = np.where(band % 2 == 0, source, width - 1 - source)  # (kept,)
    return band * width + within


def _cut(source: np.ndarray, target: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Where batches begin, and the end: each takes as many as the budget allows."""
    cuts = [0]
    while cuts[-1] < len(source):
        at = cuts[-1]
        most = batch_tokens // max(1, source[at] + target[at])  # more cannot fit beside this one
        widest = np.maximum.accumulate(source[at : at + most]) + np.maximum.accumulate(
            target[at : at + most]
        )
        cost = widest * np.arange(1, len(widest) + 1)  # of the first 1, 2, 3 ... together
        cuts.append(at + int(np.searchsorted(cost, batch_tokens, side="right")))
    return np.array(cuts)


def _padding(source: np.ndarray, target: np.ndarray, cuts: np.ndarray) -> float:
    """The share of padding among all tokens of an epoch."""
    widest = np.maximum.reduceat(source, cuts[:-1]) + np.maximum.reduceat(
        target, cuts[:-1]
    )  # (batches,)
    return 1 - float((source + target).sum() / max(1, (widest * np.diff(cuts)).sum()))


def _nothing_fits(n: int, batch_tokens: int, max_len: int | None) -> QkvError:
    limit = "" if max_len is None else _(" and max_len {max_len:,}", max_len=max_len)
    return QkvError(
        "batch_tokens",
        _(
            "none of {n:,} pairs fits batch_tokens {batch_tokens:,}{limit}",
            n=n,
            batch_tokens=batch_tokens,
            limit=limit,
        ),
        _("raise the limit or shorten the sentences"),
    )
