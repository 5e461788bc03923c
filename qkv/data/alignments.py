"""Word alignments of training pairs: read in Pharaoh format, mapped from words to tokens, kept on disk.

In: a file with a line such as "0-0 1-2" for each pair. Out: for each target token the source tokens it is aligned with, and
from these the gold attention weights of a batch. Explained in docs/training.md, "Guided alignment".
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpus import Pairs, fingerprint_of
from qkv.data.pairs import Share
from qkv.data.store import Store, reusable, write_store
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import read_lines
from qkv.text.words import word_spans

Span = tuple[int, int]
Links = list[tuple[int, int]]  # (source, target) positions
_LINK = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_LARGEST = 1 << 30  # the positions a store may hold


def read_alignment(pairs: Pairs | Share, path: str | Path) -> Iterator[Links]:
    """The word links of each pair that is kept; line n belongs to pair n of the files."""
    kept, whole = 0, pairs.pairs if isinstance(pairs, Share) else pairs
    rows = zip_longest(whole.every_pair(), read_lines(path))
    for number, (pair, line) in enumerate(rows, start=1):
        if pair is None or line is None:
            raise _other_length(path, number, line is None)
        source, target = (side.strip() for side in pair)
        if source and target:
            if not isinstance(pairs, Share) or pairs.has(kept):
                yield parse_links(
                    line,
                    len(word_spans(source)),
                    len(word_spans(target)),
                    _("{path}, line {number}", path=path, number=number),
                )
            kept += 1


def parse_links(line: str, n_source: int, n_target: int, where: str) -> Links:
    """parse_links("0-0 1-2", 2, 3, "") == [(0, 0), (1, 2)]: word numbers from 0, the source's first."""
    links = []
    for item in line.split():
        found = _LINK.fullmatch(item)
        if found is None:
            raise QkvError(
                where,
                _("'{item}' is not a link", item=item[:40]),
                _("write source-target word numbers from 0, such as 0-0 1-2"),
            )
        source, target = int(found[1]), int(found[2])
        if source >= n_source or target >= n_target:
            raise QkvError(
                where,
                _(
                    "link {item}, but the pair has {n_source} and {n_target} words",
                    item=item,
                    n_source=n_source,
                    n_target=n_target,
                ),
                _("count words from 0; each Chinese character and punctuation mark is a word"),
            )
        links.append((source, target))
    return links


def _other_length(path: str | Path, number: int, too_short: bool) -> QkvError:
    wrong = (
        _("ends after line {number:,}, the pairs do not", number=number - 1)
        if too_short
        else _("has more lines than the {number:,} pairs", number=number - 1)
    )
    return QkvError(path, wrong, _("give one line for each pair, empty where nothing is aligned"))


def token_links(
    links: Links, words: tuple[list[Span], list[Span]], tokens: tuple[list[Span], list[Span]]
) -> list[list[int]]:
    """For each target token the source tokens of the words that its word is linked with; <eos> where there is none.

    `words` and `tokens` are spans of characters, of source and target; <eos> stands after the last token of each side.
    """
    of_word = overlaps(words[0], tokens[0])
    found: list[set[int]] = [set() for _ in words[1]]
    for source, target in links:
        found[target].update(of_word[source])
    eos = len(tokens[0])
    aligned = [
        sorted(set().union(*(found[word] for word in inside)))
        for inside in overlaps(tokens[1], words[1])
    ]
    return [*(sources or [eos] for sources in aligned), [eos]]


def overlaps(rows: Sequence[Span], columns: Sequence[Span]) -> list[list[int]]:
    """For each span of `rows` the spans of `columns` that share a character with it; both stand in the order of the text."""
    found, first = [], 0
    for start, end in rows:
        while first < len(columns) and columns[first][1] <= start:
            first += 1
        last = first
        while start < end and last < len(columns) and columns[last][0] < end:
            last += 1
        found.append(
            [column for column in range(first, last) if columns[column][0] < columns[column][1]]
        )
    return found


def keep_token_links(
    folder: Path, rows: Iterator[list[list[int]]], path: str | Path, stores: tuple[Store, Store]
) -> Store:
    """Token links on disk, flattened to source, target, source, target ...; made anew only when files or ids have changed."""
    fingerprint = {
        "alignment": fingerprint_of([path]),
        "source": stores[0].checksum,
        "target": stores[1].checksum,
    }
    stored = reusable(folder, fingerprint)
    if stored is None:
        flat = (
            [
                place
                for target, sources in enumerate(row)
                for source in sources
                for place in (source, target)
            ]
            for row in rows
        )
        stored = write_store(folder, flat, _LARGEST, fingerprint)
    return stored


def gold_weights(rows: Sequence[np.ndarray], n_target: int, n_source: int) -> Tensor:
    """Stored token links as attention weights, (batch, target, source): equal shares of 1 for each target token, 0 in padding."""
    gold = np.zeros((len(rows), n_target, n_source), np.float32)
    batch = np.repeat(np.arange(len(rows)), [len(row) // 2 for row in rows])
    source, target = np.concatenate([np.asarray(row, np.int64).reshape(-1, 2) for row in rows]).T
    gold[batch, target, source] = 1
    return torch.from_numpy(gold / np.maximum(gold.sum(axis=-1, keepdims=True), 1))
