"""Read sentence pairs (aligned files, TSV, JSONL) and documents (text, JSONL, folders) as streams.

See docs/guides/data.md.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.store import Fingerprint
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.text.lines import read_lines, replace_surrogates

__all__ = ["Pairs"]

DOCUMENT_SUFFIXES = (".txt", ".md", ".jsonl", ".txt.gz", ".md.gz", ".jsonl.gz")
_PIECE_CHARS = 1 << 20  # of a document in memory

Pair = tuple[str, str]


class Pairs:
    """Sentence pairs, an iterable for several passes: Pairs("a.zh", "a.en"), Pairs("a.tsv").

    Pairs with an empty side are dropped; `dropped` is their number in the last complete pass.

    Args:
        paths: Two aligned files, or one TSV or JSONL.
        rows: Which pairs are in the subset, as booleans; None: all.
    """

    def __init__(self, *paths: str | Path, rows: np.ndarray | None = None):
        if len(paths) not in (1, 2):
            raise QkvError(
                listed(paths),
                _("{n_paths} files", n_paths=len(paths)),
                _("give two aligned files, or one TSV or JSONL"),
            )
        self.paths, self.dropped = tuple(map(Path, paths)), 0
        self.rows = rows

    def __iter__(self) -> Iterator[Pair]:
        counts = Counter[tuple[bool, ...]]()  # of pairs, by which sides have text
        for pair in self.raw_pairs():
            source, target = map(str.strip, pair)
            if source and target and self.contains(counts[True, True]):
                yield source, target
            counts[bool(source), bool(target)] += 1
        self.dropped = counts.total() - counts[True, True]
        if not counts[True, True]:
            raise self._empty_side_error(map(any, zip(*counts, strict=True)))

    def subset(self, rows: np.ndarray) -> "Pairs":
        """Return the pairs where `rows`, booleans that do not count dropped pairs, is true."""
        return Pairs(*self.paths, rows=rows)

    def contains(self, index: int) -> bool:
        """Return whether the pair of this index, not counting dropped pairs, is in the subset."""
        return self.rows is None or bool(self.rows[index])

    def fingerprint(self) -> Fingerprint:
        """Return entries that change if the pairs change."""
        entries = {"files": fingerprint_of(self.paths), "errors": "strict"}
        return entries if self.rows is None else entries | {"rows": fingerprint_of_rows(self.rows)}

    def raw_pairs(self) -> Iterator[Pair]:
        """Yield the pairs of all lines, also those with an empty side."""
        if len(self.paths) == 2:
            return _aligned(*self.paths)
        path = self.paths[0]
        return _json_fields(path, "source", "target") if is_jsonl(path) else _tsv(path)

    def _empty_side_error(self, filled: Iterable[bool]) -> QkvError:
        """Return the error for a corpus without pairs; of two files it names the empty one."""
        empty = [path for path, has_text in zip(self.paths, filled, strict=False) if not has_text]
        return QkvError(
            listed(empty if len(empty) == 1 else self.paths),
            _("no pair has text on both sides"),
            _("give a sentence and its translation on each line"),
        )


def read_pieces(paths: Iterable[str | Path]) -> Iterator[tuple[str, bool]]:
    """Yield documents in pieces of about a megabyte, split at newlines, so memory stays bounded.

    A document is a text file, or a line {"text": ...} of a JSONL. Every line of a text file ends
    with "\\n", also the last.

    Yields:
        The text of a piece, and whether it is the end of its document.
    """
    for path in document_files(paths):
        if is_jsonl(path):
            yield from ((text, True) for (text,) in _json_fields(path, "text"))
        else:
            yield from _pieces_of_text(path)


def document_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the files; a folder stands for all its .txt, .md and .jsonl files, sorted by path."""
    files: list[Path] = []
    for path in map(Path, paths):
        check_not_pipe(path)
        files += _documents_below(path) if path.is_dir() else [path]
    return files


def _documents_below(folder: Path) -> list[Path]:
    below = sorted(path for path in folder.rglob("*") if path.is_file())
    files = [path for path in below if path.name.lower().endswith(DOCUMENT_SUFFIXES)]
    if not files:
        wrong = _("no text files in this folder")
        raise QkvError(folder, wrong, _("put .txt, .md or .jsonl files there"))
    return files


def check_readable(paths: Iterable[str | Path]) -> None:
    """Open each file once, so that an unreadable file is reported before any is processed."""
    for path in paths:
        check_not_pipe(path)
        read_lines(path)  # raises errors before the first line


def check_not_pipe(path: str | Path) -> None:
    """Raise an error for a pipe, such as <(head a.txt), where a file is read more than once."""
    if Path(path).is_fifo():
        raise QkvError(
            path, _("a pipe, which can be read only once"), _("write it to a file first")
        )


def fingerprint_of(paths: Iterable[str | Path]) -> str:
    """Return the SHA-256 of the contents of files, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise QkvError(path, _("cannot be read"), error.strerror or str(error)) from None
    return digest.hexdigest()


def fingerprint_of_rows(rows: np.ndarray) -> str:
    """Return the SHA-256 of booleans."""
    return hashlib.sha256(np.packbits(rows).tobytes() + str(len(rows)).encode()).hexdigest()


def _aligned(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line n of one file with line n of the other."""
    sources, targets = read_lines(source), read_lines(target)
    for number, (left, right) in enumerate(zip_longest(sources, targets)):
        if left is None or right is None:
            longer = number + 1 + sum(1 for _ in (sources if right is None else targets))
            counts = (number, longer) if left is None else (longer, number)
            raise QkvError(
                f"{source}, {target}",
                _("{n_source:,} and {n_target:,} lines", n_source=counts[0], n_target=counts[1]),
                _("line n of one must be the translation of line n of the other"),
            )
        yield left, right


def _tsv(path: Path) -> Iterator[Pair]:
    """Yield the first two columns; a blank line is an empty pair."""
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            where = location(path, number)
            raise QkvError(where, _("no second column"), _("write source<TAB>target"))
        yield (columns[0], columns[1]) if len(columns) > 1 else ("", "")


def _json_fields(path: Path, *keys: str) -> Iterator[Any]:
    """Yield the texts of these keys of each non-blank line of a JSONL."""
    example = "{" + ", ".join(f'"{key}": "..."' for key in keys) + "}"
    right = _("write {example}", example=example)
    for where, line in located_lines(path):
        if line.strip():
            record = parse_json(line, where, right)
            if wrong := _problem(record, keys):
                raise QkvError(where, wrong, right)
            yield tuple(replace_surrogates(record[key]) for key in keys)


def _problem(record: Any, keys: Sequence[str]) -> str:
    """Return what is wrong with a record that must have texts at these keys, or ""."""
    if not isinstance(record, dict):
        return _("not a JSON object")
    if missing := [f"'{key}'" for key in keys if key not in record]:
        return _("no {names}", names=", ".join(missing))
    not_text = [f"'{key}'" for key in keys if not isinstance(record[key], str)]
    return _("{names} is not text", names=", ".join(not_text)) if not_text else ""


def _pieces_of_text(path: Path) -> Iterator[tuple[str, bool]]:
    piece: list[str] = []
    size = 0
    for line in read_lines(path):
        if size >= _PIECE_CHARS:
            yield "".join(piece), False
            piece, size = [], 0
        piece += [line, "\n"]
        size += len(line) + 1
    yield "".join(piece), True


def parse_json(line: str, where: str, right: str) -> Any:
    """Parse a line of a JSONL; `right` says what to write instead of one that is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise QkvError(where, _("not JSON"), right) from None


def located_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the location of each line, for error messages, and the line."""
    for number, line in enumerate(read_lines(path), start=1):
        yield location(path, number), line


def location(path: str | Path, number: int) -> str:
    """Return the location of a line in error messages."""
    return _("{path}, line {number}", path=path, number=number)


def is_jsonl(path: Path) -> bool:
    """Return whether a file is read as JSONL, by its name."""
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))
