"""Which stretches of a long text go together, and in which order.

In: ids in one long row, documents separated by <eos>; a context length, a token budget, a seed. Out: the rows of any step.
The order is worked out, never stored, so a corpus may be larger than memory. Told in docs/language-models.md, "Windows".
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from qkv.data.batches import BatchPlan
from qkv.errors import QkvError
from qkv.messages import _

SCAN = 1 << 24  # ids looked at together in search of <eos>
ROUNDS = 4  # of a Feistel network: four make a permutation that nobody can tell from chance


class Windows(Protocol):
    """What a task needs of either kind; a row of n + 1 ids holds n inputs and, one further, n targets."""

    def __len__(self) -> int:
        """How many micro-batches an epoch has, the last one perhaps reaching into the next."""
        ...

    def rows(self, step: int, rank: int = 0, world: int = 1) -> list[np.ndarray]:
        """The rows of one process at one step."""
        ...


class PackedWindows:
    """The text as one circle, cut into windows of `context` tokens at another place in every epoch.

    Every token is a target once an epoch; where the windows meet again, at most `context` tokens are a second time.
    A window may reach over <eos> into the next document, and from the last document into the first.
    """

    def __init__(self, ids: np.ndarray, context: int, batch_tokens: int, seed: int):
        refuse_short(len(ids), context)
        self.ids, self.context, self.seed = ids, context, seed
        self.per_batch = rows_of(batch_tokens, context)
        self.per_epoch = -(-len(ids) // context)

    def __len__(self) -> int:
        return -(-self.per_epoch // self.per_batch)

    def rows(self, step: int, rank: int = 0, world: int = 1) -> list[np.ndarray]:
        return [self._row(start) for start in self.starts(step, rank, world)]

    def starts(self, step: int, rank: int = 0, world: int = 1) -> list[int]:
        """Where each row begins: a pure function of the seed and these numbers; epochs follow without a seam."""
        assert 0 <= rank < world and step >= 0
        first = (step * world + rank) * self.per_batch
        return [self._start(number) for number in range(first, first + self.per_batch)]

    def _start(self, number: int) -> int:
        epoch, turn = divmod(number, self.per_epoch)
        shift, *keys = draws(self.seed, epoch, 1 + ROUNDS)
        return (shift + shuffled(turn, self.per_epoch, keys) * self.context) % len(self.ids)

    def _row(self, start: int) -> np.ndarray:
        end = start + self.context + 1
        row = self.ids[start:end]
        return (
            row if end <= len(self.ids) else np.concatenate([row, self.ids[: end - len(self.ids)]])
        )


class DocumentWindows:
    """Each document for itself, longer ones in stretches of `context`: no token sees another document.

    Each row begins with the token before its first target, <eos> for the first of a document. Rows of one length go
    together, padded where they must; an epoch reads every token once as a target.
    """

    def __init__(self, ids: np.ndarray, eos_id: int, context: int, batch_tokens: int, seed: int):
        rows_of(batch_tokens, context)
        self.ids, self.eos_id = ids, eos_id
        self.begin, self.length = stretches(document_ends(ids, eos_id), context)  # (rows,) each
        self.plan = BatchPlan(np.zeros_like(self.length), self.length, batch_tokens, seed)

    def __len__(self) -> int:
        return len(self.plan)

    def rows(self, step: int, rank: int = 0, world: int = 1) -> list[np.ndarray]:
        return [
            self._row(int(self.begin[i]), int(self.length[i]))
            for i in self.plan.batch(step, rank, world)
        ]

    def _row(self, begin: int, length: int) -> np.ndarray:
        row = self.ids[max(0, begin - 1) : begin + length]
        return row if begin else np.concatenate([np.array([self.eos_id], row.dtype), row])


def rows_of(batch_tokens: int, context: int) -> int:
    """How many windows a batch holds; not even one is a mistake."""
    if batch_tokens < context:
        wrong = _(
            "{batch_tokens:,} is less than one window of {context:,}",
            batch_tokens=batch_tokens,
            context=context,
        )
        raise QkvError("batch_tokens", wrong, _("raise it or shorten context"))
    return batch_tokens // context


def refuse_short(tokens: int, context: int) -> None:
    if tokens <= context:
        wrong = _(
            "{tokens:,} tokens are less than one window of {context:,}",
            tokens=tokens,
            context=context,
        )
        raise QkvError("text", wrong, _("give more text or a shorter context"))


def document_ends(ids: np.ndarray, eos_id: int) -> np.ndarray:
    """The place after each <eos>, and the end of the text; the text is looked at in parts."""
    found = [
        np.flatnonzero(ids[at : at + SCAN] == eos_id) + at + 1 for at in range(0, len(ids), SCAN)
    ]
    return np.unique(np.concatenate([*found, [len(ids)]]))  # (documents,)


def stretches(ends: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each row's targets begin, and how many they are: documents up to these ends, in parts of `context`."""
    lengths = np.diff(ends, prepend=0)  # (documents,)
    parts = -(-lengths // context)
    within = np.arange(parts.sum()) - np.repeat(
        np.cumsum(parts) - parts, parts
    )  # 0, 1, 2 ... in each document
    begin = np.repeat(ends - lengths, parts) + within * context  # (rows,)
    return begin, np.minimum(context, np.repeat(ends, parts) - begin)


@lru_cache(maxsize=4)
def draws(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """Raw draws only: numpy promises that these stay the same in every version, unlike its shuffles."""
    return tuple(np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(count).tolist())


def shuffled(place: int, n: int, keys: Sequence[int]) -> int:
    """A permutation of range(n) worked out one place at a time, without a table: sorted of all n places is range(n).

    A Feistel network permutes the numbers below a power of four; one that falls outside n goes through again.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for key in keys:
            left, right = right, left ^ (mixed(right ^ key) & mask)
        place = left << half | right
        if place < n:
            return place


def mixed(x: int) -> int:
    """A number whose every bit depends on every bit of x (the finaliser of splitmix64)."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    x = (x ^ x >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return x ^ x >> 31
