"""How surprised a language model is by a whole text.

In: the ids of a text, however long, and how many bytes it has. Out: nats per token, perplexity, and bits per byte, which
compares models of different vocabularies. Every token is predicted exactly once. Told in docs/language-models.md, "Measuring".
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from qkv.evaluate.perplexity import Surprise
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer

BATCH_TOKENS = 8_192  # read at once; without gradients this is little memory


@dataclass(frozen=True)
class TextPerplexity(Surprise):
    """Of the tokens of a text, which stand for so many bytes of UTF-8."""

    bytes: int

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.bytes if self.bytes else math.nan


class Window(NamedTuple):
    """A stretch of `length` tokens read from `start`, of which the last `scored` are predicted for the count."""

    start: int
    length: int
    scored: int


def text_perplexity(
    model: Transformer,
    ids: np.ndarray,
    n_bytes: int,
    context: int,
    stride: int | None = None,
    first: int | None = None,
) -> TextPerplexity:
    """Read the text in windows of `context` tokens, each `stride` further (half a context if not given).

    `first` is what stands before the text, such as <bos> or <eos>; without it the first token can only be read.
    A smaller stride gives every token more to look back at, and costs more time.
    """
    assert model.decoder is not None and ids.ndim == 1
    text = Text(ids, first)
    nats, device = 0.0, model.embed.weight.device
    with eval_mode(model):
        for batch in batches(windows(len(text), context, stride or max(1, context // 2))):
            rows = torch.from_numpy(
                np.stack([text[one.start : one.start + one.length + 1] for one in batch])
            ).to(device)
            scored = batch[0].scored
            stream = model.decode(rows[:, :-1])  # (rows, length, d_model)
            nats += float(model.loss(stream[:, -scored:], rows[:, -scored:]))
    return TextPerplexity(nats, len(text), n_bytes)


def documents_perplexity(
    model: Transformer, ids: np.ndarray, n_bytes: int, context: int, eos: int
) -> TextPerplexity:
    """The same for documents that end with `eos`, each read by itself after an `eos`; documents of one length together."""
    ends = np.flatnonzero(ids == eos) + 1
    documents = [part for part in np.split(ids, ends) if len(part)]
    nats, longer = 0.0, [part for part in documents if len(part) > context]
    for length in sorted({len(part) for part in documents if len(part) <= context}):
        alike = [part for part in documents if len(part) == length]
        rows = max(1, BATCH_TOKENS // length)
        nats += sum(
            _nats(model, np.stack(alike[at : at + rows]), eos) for at in range(0, len(alike), rows)
        )
    nats += sum(text_perplexity(model, part, 0, context, first=eos).nats for part in longer)
    return TextPerplexity(nats, len(ids), n_bytes)


def _nats(model: Transformer, rows: np.ndarray, first: int) -> float:
    """The summed negative log-likelihood of rows (documents, length), each read after `first`."""
    device = model.embed.weight.device
    with eval_mode(model):
        targets = torch.from_numpy(rows.astype(np.int64)).to(device)
        given = torch.cat([torch.full_like(targets[:, :1], first), targets[:, :-1]], dim=1)
        return float(model.loss(model.decode(given), targets))


def windows(n: int, context: int, stride: int) -> list[Window]:
    """The fewest windows that predict each of n tokens once, all but the first with context - stride before them.

    >>> windows(10, context=4, stride=3)
    [Window(start=0, length=4, scored=4), Window(start=3, length=4, scored=3), Window(start=6, length=4, scored=3)]
    """
    assert context > 0 and 0 < stride <= context, (context, stride)
    found, done = [], min(n, context)
    if n:
        found.append(Window(0, done, done))
    while done < n:
        scored = min(stride, n - done)
        done += scored
        found.append(Window(done - context, context, scored))
    return found


def batches(found: list[Window]) -> Iterator[list[Window]]:
    """Neighbours that score equally many tokens, together within the budget."""
    start = 0
    for end in range(1, len(found) + 1):
        full = (end - start + 1) * found[start].length > BATCH_TOKENS
        if end == len(found) or full or found[end].scored != found[start].scored:
            yield found[start:end]
            start = end


class Text:
    """Ids with something before them, without a copy of them all: text[a:b] gives the places a to b, `first` at 0."""

    def __init__(self, ids: np.ndarray, first: int | None):
        self.ids, self.first = ids, first

    def __len__(self) -> int:
        """How many tokens have one before them, and so can be predicted."""
        return max(0, len(self.ids) - (self.first is None))

    def __getitem__(self, places: slice) -> np.ndarray:
        if self.first is None:
            return self.ids[places].astype(np.int64)
        inside = self.ids[max(0, places.start - 1) : places.stop - 1].astype(np.int64)
        return np.concatenate([[self.first], inside]) if places.start == 0 else inside
