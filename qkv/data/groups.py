"""Groups of texts with the same meaning, for contrastive training: read from files and stored.

One group per line: paraphrases, captions of one image, or translations. See
docs/guides/embeddings.md.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.corpus import fingerprint_of, fingerprint_of_rows, is_jsonl, located_lines, location
from qkv.data.store import (
    TEXT_VOCAB_SIZE,
    Fingerprint,
    Store,
    StoreWriter,
    TextStore,
    open_if_current,
)
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text.lines import read_lines, replace_surrogates

MAX_TEXTS = 1 << 32


@dataclass(frozen=True)
class Group:
    """Texts with the same meaning, and an optional hard negative."""

    texts: tuple[str, ...]
    negative: str = ""


Lines = Iterator[tuple[str, Group]]  # the location and the texts of each line


@dataclass(frozen=True)
class Groups:
    """Groups of files, an iterable for several passes; see read_groups.

    Attributes:
        paths: One TSV or JSONL, or several aligned files.
        hard_negatives: Whether the third column is a hard negative.
        rows: Which groups are in the subset, as booleans; None: all.
    """

    paths: tuple[Path, ...]
    hard_negatives: bool = False
    rows: np.ndarray | None = field(default=None, compare=False)

    def __iter__(self) -> Iterator[Group]:
        kept = 0
        groups = (self._group(where, line) for where, line in self._lines())
        for number, group in enumerate(filter(None, groups)):
            # Groups are counted, not lines: blank lines must not change which groups are held out.
            if self.rows is None or self.rows[number]:
                kept += 1
                yield group
        if not kept:
            wrong = _("no line has two sentences")
            right = _("give two sentences with the same meaning on each line")
            raise QkvError(listed(self.paths), wrong, right)

    def subset(self, rows: np.ndarray) -> "Groups":
        """Return the groups where `rows`, booleans that do not count skipped lines, is true."""
        return replace(self, rows=rows)

    def fingerprint(self) -> Fingerprint:
        """Return entries that change if the groups change."""
        options = f"{len(self.paths)} {self.hard_negatives}"
        rows = "all" if self.rows is None else fingerprint_of_rows(self.rows)
        return {"files": fingerprint_of(self.paths), "groups": options, "rows": rows}

    def _lines(self) -> Lines:
        """Yield each line with its file and number; texts may be empty."""
        if len(self.paths) > 1:
            return _aligned(self.paths, self.hard_negatives)
        read = _jsonl if is_jsonl(self.paths[0]) else _tsv
        return read(self.paths[0], self.hard_negatives)

    def _group(self, where: str, line: Group) -> Group | None:
        """Return the distinct non-empty texts of a line, or None if there are fewer than two."""
        negative = line.negative.strip()
        texts = tuple(dict.fromkeys(filter(None, map(str.strip, line.texts))))
        if negative and negative in texts:
            wrong = _("the hard negative is one of the sentences")
            raise QkvError(where, wrong, _("give one with a different meaning"))
        return Group(texts, negative) if len(texts) > 1 else None


def read_groups(*paths: str | Path, hard_negatives: bool = False) -> Groups:
    """Return the groups of one TSV or JSONL, or of aligned files.

    Args:
        paths: One file, several aligned files, or a pattern such as train.*.en.
        hard_negatives: Whether the third column (or "negative") is a hard negative.
    """
    files = tuple(Path(path) for path in paths)
    if len(files) == 1 and "*" in files[0].name:
        files = tuple(sorted(files[0].parent.glob(files[0].name)))
        if len(files) < 2:
            wrong = _("the pattern matches {n_files} files", n_files=len(files))
            raise QkvError(paths[0], wrong, _("it should match two or more aligned files"))
    return Groups(files, hard_negatives)


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def _columns(line: Sequence[str], hard_negatives: bool) -> Group:
    """Return the group of a line: all columns, or two and a hard negative."""
    return Group(tuple(line[:2]), "".join(line[2:3])) if hard_negatives else Group(tuple(line))


def _aligned(paths: tuple[Path, ...], hard_negatives: bool) -> Lines:
    """Yield line n of every file."""
    for number, line in enumerate(zip_longest(*map(read_lines, paths)), start=1):
        if None in line:
            short = [str(path) for path, text in zip(paths, line, strict=True) if text is None]
            wrong = _("only {n_lines:,} lines, other files have more", n_lines=number - 1)
            right = _("line n of all files must have the same meaning")
            raise QkvError(listed(short), wrong, right)
        yield location(paths[0], number), _columns(line, hard_negatives)


def _tsv(path: Path, hard_negatives: bool) -> Lines:
    """Yield the columns of each line; a blank line is an empty group."""
    least = 3 if hard_negatives else 2
    for where, text in located_lines(path):
        line = text.split("\t")
        if text.strip() and len(line) < least:
            wrong = _("{n_columns} of {n_required} columns", n_columns=len(line), n_required=least)
            right = (
                _("write sentence<TAB>paraphrase<TAB>hard negative")
                if hard_negatives
                else _("write sentence<TAB>paraphrase")
            )
            raise QkvError(where, wrong, right)
        yield where, _columns(line, hard_negatives)


def _jsonl(path: Path, hard_negatives: bool) -> Lines:
    return (
        (where, _fields(where, text, hard_negatives))
        for where, text in located_lines(path)
        if text.strip()
    )


def _fields(where: str, text: str, hard_negatives: bool) -> Group:
    """Parse {"texts": [...]} or {"source": ..., "target": ...}, with an optional "negative"."""
    example = '{"texts": ["...", "..."]}, {"source": "...", "target": "..."}'
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    match record:
        case {"texts": [*found]}:
            pass
        case {"source": source, "target": target}:
            found = [source, target]
        case _:
            found = []
    if len(found) < 2 or not all(isinstance(text, str) for text in found):
        raise QkvError(where, _("fewer than two sentences"), _("write {example}", example=example))
    sentences = tuple(map(replace_surrogates, found))
    negative = record.get("negative")
    if not negative:
        return Group(sentences)
    if not isinstance(negative, str):
        raise QkvError(where, _("'negative' is not text"), _("write one sentence"))
    if not hard_negatives:  # neither use it as a positive nor ignore it silently
        wrong = _("has a 'negative', but hard_negatives is false")
        raise QkvError(where, wrong, _("set hard_negatives=true, or remove the field"))
    return Group(sentences, replace_surrogates(negative))


# ── storing ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class GroupStore:
    """Groups on disk: all texts, and for each group the indices of its texts."""

    texts: TextStore
    members: Store  # row g: the text indices of group g
    negatives: Store  # row g: the text index of its hard negative, or empty

    def __len__(self) -> int:
        return len(self.members)


def store_groups(folder: Path, groups: Groups) -> GroupStore:
    """Store groups in `folder`, or open the existing stores if the files are unchanged."""
    folders = [folder / part for part in ("texts", "members", "negatives")]
    fingerprint = groups.fingerprint()
    stored = [open_if_current(part, fingerprint) for part in folders]
    if None in stored or len(stored[1] or ()) != len(stored[2] or ()):
        _write(folders, groups, fingerprint)
    texts, members, negatives = map(Store.open, folders)
    return GroupStore(TextStore(texts), members, negatives)


def _write(folders: Sequence[Path], groups: Groups, fingerprint: Fingerprint) -> None:
    count = 0
    texts, members, negatives = (
        StoreWriter(folder, vocab_size, fingerprint)
        for folder, vocab_size in zip(folders, (TEXT_VOCAB_SIZE, MAX_TEXTS, MAX_TEXTS), strict=True)
    )
    with texts, members, negatives:
        for group in groups:
            n, negative = len(group.texts), [group.negative] if group.negative else []
            for text in (*group.texts, *negative):
                texts.add(text)
            members.add(range(count, count + n))
            negatives.add(range(count + n, count + n + len(negative)))
            count += n + len(negative)
