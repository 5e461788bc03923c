"""Training windows of a language model over a stream of ids, packed or per document.

The shuffled order is computed, not stored, so a corpus may be larger than memory.
See docs/guides/training.md.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from qkv.data.batches import BatchPlan, batch_number
from qkv.data.random_numbers import mix_bits, random_stream
from qkv.errors import QkvError
from qkv.messages import _

__all__ = ["PackedWindows"]

SCAN_IDS = 1 << 24  # searched for <eos> at once
FEISTEL_ROUNDS = 4  # a four-round Feistel network is a strong pseudorandom permutation


class PackedWindows:
    """Packed windows of `context_length` tokens over the cyclic stream, with an offset per epoch.

    Every token is a target once per epoch, up to `context_length` of them twice. A window may
    cross <eos> into the next document, and from the last document into the first.

    Args:
        ids: The stream, documents separated by <eos>.
        context_length: Tokens per window.
        batch_tokens: Tokens per micro-batch.
        seed: Determines offsets and order.
    """

    def __init__(self, ids: np.ndarray, context_length: int, batch_tokens: int, seed: int):
        check_text_length(len(ids), context_length)
        self.ids, self.context_length, self.seed = ids, context_length, seed
        self.per_batch = windows_per_batch(batch_tokens, context_length)
        self.per_epoch = -(-len(ids) // context_length)

    def __len__(self) -> int:
        """The number of micro-batches per epoch; the last may continue with the next epoch."""
        return -(-self.per_epoch // self.per_batch)

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> list[np.ndarray]:
        """Return the rows of one process at one step: n + 1 ids for n inputs and n targets."""
        return [self._row(start) for start in self.starts(step, rank, world_size)]

    def starts(self, step: int, rank: int = 0, world_size: int = 1) -> list[int]:
        """Return the start of each row: a pure function of the seed and the arguments."""
        first = batch_number(step, rank, world_size) * self.per_batch
        return [self._start(number) for number in range(first, first + self.per_batch)]

    def _start(self, number: int) -> int:
        epoch, index = divmod(number, self.per_epoch)
        offset, *keys = raw_draws(self.seed, epoch, 1 + FEISTEL_ROUNDS)
        window = permute(index, self.per_epoch, keys)
        return (offset + window * self.context_length) % len(self.ids)

    def _row(self, start: int) -> np.ndarray:
        return self.ids.take(np.arange(start, start + self.context_length + 1), mode="wrap")


class DocumentWindows:
    """Windows that do not cross documents; longer documents are split into several windows.

    Each row begins with the token before its first target, <eos> for the first row of a document.
    Rows of similar length are batched and padded; every token is a target once per epoch. The
    arguments are those of PackedWindows.
    """

    def __init__(
        self, ids: np.ndarray, eos_id: int, context_length: int, batch_tokens: int, seed: int
    ):
        windows_per_batch(batch_tokens, context_length)
        self.ids, self.eos_id = ids, eos_id
        ends = document_ends(ids, eos_id)
        self.begin, self.length = split_documents(ends, context_length)  # (rows,) each
        self.plan = BatchPlan(np.zeros_like(self.length), self.length, batch_tokens, seed)

    def __len__(self) -> int:
        return len(self.plan)

    def rows(self, step: int, rank: int = 0, world_size: int = 1) -> list[np.ndarray]:
        """Return the rows of one process at one step, as PackedWindows does."""
        return [
            self._row(int(self.begin[i]), int(self.length[i]))
            for i in self.plan.batch(step, rank, world_size)
        ]

    def _row(self, begin: int, length: int) -> np.ndarray:
        row = self.ids[max(0, begin - 1) : begin + length]
        return row if begin else np.concatenate([np.array([self.eos_id], row.dtype), row])


Windows = PackedWindows | DocumentWindows


def windows_per_batch(batch_tokens: int, context_length: int) -> int:
    """Return the number of windows per micro-batch, at least one."""
    if batch_tokens < context_length:
        wrong = _(
            "{batch_tokens:,} is less than context_length {context_length:,}",
            batch_tokens=batch_tokens,
            context_length=context_length,
        )
        raise QkvError("batch_tokens", wrong, _("increase it or reduce context_length"))
    return batch_tokens // context_length


def check_text_length(n_tokens: int, context_length: int) -> None:
    """Raise an error if a text is too short for one window."""
    if n_tokens <= context_length:
        wrong = _(
            "{n_tokens:,} tokens do not fill one window of context_length {context_length:,}",
            n_tokens=n_tokens,
            context_length=context_length,
        )
        raise QkvError("text", wrong, _("give more text or reduce context_length"))


def document_ends(ids: np.ndarray, eos_id: int) -> np.ndarray:
    """Return the position after each <eos>, and the end of the text."""
    found = [
        np.flatnonzero(ids[start : start + SCAN_IDS] == eos_id) + start + 1
        for start in range(0, len(ids), SCAN_IDS)
    ]
    return np.unique(np.concatenate([*found, [len(ids)]]))  # (documents,)


def split_documents(ends: np.ndarray, context_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and number of targets of each row, for documents with these ends."""
    lengths = np.diff(ends, prepend=0)  # (documents,)
    parts = -(-lengths // context_length)
    first_part = np.repeat(np.cumsum(parts) - parts, parts)  # (rows,)
    within = np.arange(parts.sum()) - first_part  # 0, 1, 2 ... in each document
    begin = np.repeat(ends - lengths, parts) + within * context_length  # (rows,)
    return begin, np.minimum(context_length, np.repeat(ends, parts) - begin)


@lru_cache(maxsize=4)
def raw_draws(seed: int, epoch: int, count: int) -> tuple[int, ...]:
    """Return raw draws of an epoch."""
    return tuple(random_stream(seed, epoch).random_raw(count).tolist())


def permute(index: int, n: int, keys: Sequence[int]) -> int:
    """Return element `index` of a pseudorandom permutation of range(n), without a table.

    A Feistel network permutes the integers below a power of four; results outside range(n) are
    permuted again (cycle walking).
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for key in keys:
            left, right = right, left ^ (mix_bits(right ^ key) & mask)
        index = left << half | right
        if index < n:
            return index
