"""Word alignments of training pairs: read in Pharaoh format ("0-0 1-2"), mapped to tokens, stored.

Guided alignment trains an attention head on them. See docs/guides/training.md.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.data.corpus import Pairs, fingerprint_of, location
from qkv.data.store import Store, reuse_or_write
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import read_lines
from qkv.text.word_boundaries import word_spans

Span = tuple[int, int]
Links = list[tuple[int, int]]  # (source, target) positions
_LINK = re.compile(r"(\d{1,9})-(\d{1,9})", re.ASCII)
_MAX_POSITION = 1 << 30  # in a store


def read_alignment(pairs: Pairs, path: str | Path) -> Iterator[Links]:
    """Yield the word links of each pair that is used; line n belongs to pair n of the files."""
    kept = 0
    rows = zip_longest(pairs.raw_pairs(), read_lines(path))
    for number, (pair, line) in enumerate(rows, start=1):
        if pair is None or line is None:
            raise _length_error(path, number, line is None)
        source, target = (side.strip() for side in pair)
        if source and target:
            if pairs.contains(kept):
                counts = len(word_spans(source)), len(word_spans(target))
                yield parse_links(line, *counts, location(path, number))
            kept += 1


def parse_links(line: str, n_source: int, n_target: int, where: str) -> Links:
    """Parse a line: parse_links("0-0 1-2", 2, 3, "") == [(0, 0), (1, 2)].

    Args:
        line: source-target word numbers from 0.
        n_source: The number of source words.
        n_target: The number of target words.
        where: The file and line, for error messages.
    """
    links = []
    for item in line.split():
        found = _LINK.fullmatch(item)
        if found is None:
            wrong = _("'{item}' is not a link", item=item[:40])
            right = _("write source-target word numbers from 0, such as 0-0 1-2")
            raise QkvError(where, wrong, right)
        source, target = map(int, found.groups())
        if source >= n_source or target >= n_target:
            wrong = _(
                "link {item}, but the pair has {n_source} and {n_target} words",
                item=item,
                n_source=n_source,
                n_target=n_target,
            )
            right = _("count words from 0; each Chinese character and punctuation mark is a word")
            raise QkvError(where, wrong, right)
        links.append((source, target))
    return links


def _length_error(path: str | Path, number: int, too_short: bool) -> QkvError:
    wrong = (
        _("ends after line {number:,}, the pairs do not", number=number - 1)
        if too_short
        else _("has more lines than the {number:,} pairs", number=number - 1)
    )
    return QkvError(path, wrong, _("give one line for each pair, empty where nothing is aligned"))


def token_links(
    links: Links, words: Sequence[list[Span]], tokens: Sequence[list[Span]]
) -> list[list[int]]:
    """Return the source tokens that each target token is aligned with; <eos> if there are none.

    Args:
        links: (source, target) word numbers.
        words: The character spans of the source and target words.
        tokens: The character spans of the source and target tokens; <eos> follows the last one.
    """
    tokens_of_word = overlaps(words[0], tokens[0])
    linked: list[set[int]] = [set() for _ in words[1]]
    for source, target in links:
        linked[target].update(tokens_of_word[source])
    eos = len(tokens[0])
    aligned = [
        sorted(set().union(*(linked[word] for word in target_words)))
        for target_words in overlaps(tokens[1], words[1])
    ]
    return [*(sources or [eos] for sources in aligned), [eos]]


def overlaps(rows: Sequence[Span], columns: Sequence[Span]) -> list[list[int]]:
    """Return, for each span of `rows`, the spans of `columns` that overlap it; both are sorted."""
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


def store_token_links(
    folder: Path, rows: Iterator[list[list[int]]], path: str | Path, stores: tuple[Store, Store]
) -> Store:
    """Store token links, flattened to source, target, source, target ...

    An existing store is reused if the files and ids are unchanged.
    """
    fingerprint = {
        "alignment": fingerprint_of([path]),
        "source": stores[0].checksum,
        "target": stores[1].checksum,
    }
    flat = (
        [
            position
            for target, sources in enumerate(row)
            for source in sources
            for position in (source, target)
        ]
        for row in rows
    )
    return reuse_or_write(folder, flat, _MAX_POSITION, fingerprint)


def gold_weights(rows: Sequence[np.ndarray], n_target: int, n_source: int) -> Tensor:
    """Convert stored token links to attention weights, uniform over the links of a target token.

    Returns:
        (batch, target, source); each row sums to 1, or 0 for padding.
    """
    gold = np.zeros((len(rows), n_target, n_source), np.float32)
    batch = np.repeat(np.arange(len(rows)), [len(row) // 2 for row in rows])
    source, target = np.concatenate([np.asarray(row, np.int64).reshape(-1, 2) for row in rows]).T
    gold[batch, target, source] = 1
    return torch.from_numpy(gold / np.maximum(gold.sum(axis=-1, keepdims=True), 1))
