"""Batches of the embedder: rows sorted by length, pooling, averages of chunks, warnings.

See docs/guides/embeddings.md.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.engine.encoder import LengthGroups
from qkv.messages import _
from qkv.model.pooling import pool

MAX_BATCH_TOKENS = 8_192  # bounds the memory of a batch


class Location(NamedTuple):
    """The location of texts, for messages: a file, and the line of the first text."""

    file: str
    first_line: int

    def of(self, index: int) -> str:
        """Return the file and line of the text of this index."""
        line = self.first_line + index
        return (
            _("{file}, line {line}", file=self.file, line=line)
            if self.file
            else _("line {line}", line=line)
        )


def length_sorted_batches(rows: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Yield the row indices of each batch, longest rows first: memory peaks in the first batch."""
    batch: list[int] = []
    n_tokens = 0
    for n in sorted(range(len(rows)), key=lambda n: -len(rows[n])):
        if batch and (len(batch) == batch_size or n_tokens + len(rows[n]) > MAX_BATCH_TOKENS):
            yield batch
            batch, n_tokens = [], 0
        batch.append(n)
        n_tokens += len(rows[n])
    if batch:
        yield batch


def pool_groups(states: Tensor, groups: LengthGroups, pooling: str) -> Tensor:
    """Pool concatenated sequences: (tokens, d_model) -> (sequences, d_model)."""
    parts = zip(states.split([rows * length for rows, length in groups]), groups, strict=True)
    return torch.cat([pool(part.unflatten(0, shape), None, pooling) for part, shape in parts])


def average_chunks(vectors: Tensor, owners: list[int], n_tokens: list[int]) -> Tensor:
    """Return the mean of the chunk vectors of each text, weighted by their numbers of tokens."""
    weights = torch.tensor(n_tokens, dtype=vectors.dtype)
    texts = torch.tensor(owners)
    sums = vectors.new_zeros(owners[-1] + 1, vectors.shape[1]).index_add_(
        0, texts, vectors * weights[:, None]
    )
    return sums / weights.new_zeros(len(sums)).index_add_(0, texts, weights)[:, None]


def truncation_warning(too_long: list[tuple[int, int]], max_tokens: int, location: Location) -> str:
    """Return one warning for all truncated texts: the first by line, the others by number."""
    index, n_tokens = too_long[0]
    n_others = len(too_long) - 1
    if n_others:
        return _(
            "{where} (and {n_others:,} more): {n_tokens:,} tokens truncated to {max_tokens:,}; "
            "use truncation chunk to embed the whole text",
            where=location.of(index),
            n_others=n_others,
            n_tokens=n_tokens,
            max_tokens=max_tokens,
        )
    return _(
        "{where}: {n_tokens:,} tokens truncated to {max_tokens:,}; "
        "use truncation chunk to embed the whole text",
        where=location.of(index),
        n_tokens=n_tokens,
        max_tokens=max_tokens,
    )
