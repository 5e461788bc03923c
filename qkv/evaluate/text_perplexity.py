"""Perplexity and bits per byte of a language model on a text of any length, by sliding windows.

Every token is predicted exactly once. Bits per byte compares models with different vocabularies.
See docs/guides/training.md.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from qkv.evaluate.perplexity import NegativeLogLikelihood
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer

__all__ = ["text_perplexity"]

BATCH_TOKENS = 8_192  # of one forward pass


@dataclass(frozen=True)
class TextPerplexity(NegativeLogLikelihood):
    """Negative log-likelihood of a text of `bytes` bytes of UTF-8."""

    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan


class Window(NamedTuple):
    """A window of `length` tokens from `start`, of which the last `scored` are scored."""

    start: int
    length: int
    scored: int


def text_perplexity(
    model: Transformer,
    ids: np.ndarray,
    n_bytes: int,
    context_length: int,
    stride: int | None = None,
    bos_id: int | None = None,
) -> TextPerplexity:
    """Perplexity of a text, read in windows of `context_length` tokens.

    Args:
        model: A model with a causal decoder.
        ids: The tokens of the text, (length,).
        n_bytes: Size of the text in UTF-8, for bits per byte.
        context_length: Tokens of a window.
        stride: Distance of two windows, half a window by default. A smaller stride gives each
            token more context and takes more time.
        bos_id: The token before the text, <bos> or <eos>; without it the first token is not scored.
    """
    assert model.decoder is not None and ids.ndim == 1
    text, nats = PrefixedIds(ids, bos_id), 0.0
    stride = stride or max(1, context_length // 2)
    with eval_mode(model):
        for batch in batches(windows(len(text), context_length, stride)):
            rows = [text[window.start : window.start + window.length + 1] for window in batch]
            nats += _nats(model, rows, batch[0].scored)
    return TextPerplexity(nats, len(text), n_bytes)


def documents_perplexity(
    model: Transformer, ids: np.ndarray, n_bytes: int, context_length: int, eos_id: int
) -> TextPerplexity:
    """Perplexity of documents that end with `eos_id`, each predicted on its own after an `eos_id`.

    Documents of equal length share a batch; those longer than the context are read in windows.
    """
    ends = np.flatnonzero(ids == eos_id) + 1
    documents = [part for part in np.split(ids, ends) if len(part)]
    nats, longer = 0.0, [part for part in documents if len(part) > context_length]
    for length in sorted({len(part) for part in documents if len(part) <= context_length}):
        alike = [np.append(eos_id, part) for part in documents if len(part) == length]
        rows = max(1, BATCH_TOKENS // length)
        starts = range(0, len(alike), rows)
        with eval_mode(model):
            nats += sum(_nats(model, alike[start : start + rows], length) for start in starts)
    nats += sum(
        text_perplexity(model, part, 0, context_length, bos_id=eos_id).nats for part in longer
    )
    return TextPerplexity(nats, len(ids), n_bytes)


def _nats(model: Transformer, rows: list[np.ndarray], scored: int) -> float:
    """The summed negative log-likelihood of the last `scored` tokens of rows of equal length."""
    ids = torch.from_numpy(np.stack(rows)).to(model.embed.weight.device)  # (rows, length + 1)
    states = model.decode(ids[:, :-1])  # (rows, length, d_model)
    return float(model.loss(states[:, -scored:], ids[:, -scored:]))


def windows(n: int, context_length: int, stride: int) -> list[Window]:
    """The fewest windows that score each of n tokens once.

    In all windows but the first, a scored token has at least `context_length - stride` before it.

    >>> windows(10, context_length=4, stride=3)[:2]
    [Window(start=0, length=4, scored=4), Window(start=3, length=4, scored=3)]
    """
    assert context_length > 0 and 0 < stride <= context_length, (context_length, stride)
    first = min(n, context_length)
    found = [Window(0, first, first)] if n else []
    for done in range(first, n, stride):
        scored = min(stride, n - done)
        found.append(Window(done + scored - context_length, context_length, scored))
    return found


def batches(found: list[Window]) -> Iterator[list[Window]]:
    """Consecutive windows that score equally many tokens, at most BATCH_TOKENS tokens a batch."""
    start = 0
    for end in range(1, len(found) + 1):
        full = (end - start + 1) * found[start].length > BATCH_TOKENS
        if end == len(found) or full or found[end].scored != found[start].scored:
            yield found[start:end]
            start = end


class PrefixedIds:
    """`[bos_id, *ids]` without a copy of the ids; slices start at position 0, which is `bos_id`."""

    def __init__(self, ids: np.ndarray, bos_id: int | None):
        self.ids, self.bos_id = ids, bos_id

    def __len__(self) -> int:
        """How many tokens have a token before them, and so can be predicted."""
        return max(0, len(self.ids) - (self.bos_id is None))

    def __getitem__(self, positions: slice) -> np.ndarray:
        if self.bos_id is None:
            return self.ids[positions].astype(np.int64)
        inside = self.ids[max(0, positions.start - 1) : positions.stop - 1].astype(np.int64)
        return np.concatenate([[self.bos_id], inside]) if positions.start == 0 else inside
