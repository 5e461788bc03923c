"""Sentence pairs and documents, read from files one at a time.

In: two aligned files, a TSV or a JSONL, or plain texts and folders, plain or gzip. Out: streams of pairs, of documents.
Told in docs/data.md, "Your own files".
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import mend_surrogates, read_lines

DOCUMENT_ENDS = (".txt", ".md", ".jsonl", ".txt.gz", ".md.gz", ".jsonl.gz")
_PIECE = 1 << 20  # characters of a document held at once

Pair = tuple[str, str]


class Pairs:
    """Sentence pairs, read lazily and as often as they are asked for: Pairs("a.zh", "a.en"), Pairs("a.tsv").

    A pair with one side empty teaches nothing: it is left out, and `dropped` counts those of the last full reading.
    """

    def __init__(self, *paths: str | Path, errors: str | None = None):
        if len(paths) not in (1, 2):
            raise QkvError(
                ", ".join(map(str, paths)),
                _("{n_paths} files", n_paths=len(paths)),
                _("give two aligned files, or one TSV or JSONL"),
            )
        self.paths, self.errors, self.dropped = tuple(map(Path, paths)), errors, 0

    def __iter__(self) -> Iterator[Pair]:
        kept = dropped = 0
        filled = [False, False]  # has either side any text at all?
        for source, target in self.every_pair():
            source, target = source.strip(), target.strip()
            filled = [filled[0] or bool(source), filled[1] or bool(target)]
            if source and target:
                kept += 1
                yield source, target
            else:
                dropped += 1
        self.dropped = dropped
        if not kept:
            raise self._nothing(filled)

    def fingerprint(self) -> str:
        """What tells whether the files are still the same: a SHA-256 of their contents."""
        return fingerprint_of(self.paths)

    def every_pair(self) -> Iterator[Pair]:
        """The pairs line by line as the files have them, those with an empty side too."""
        if len(self.paths) == 2:
            return _aligned(*self.paths, self.errors)
        return (_jsonl if _is_jsonl(self.paths[0]) else _tsv)(self.paths[0], self.errors)

    def _nothing(self, filled: Sequence[bool]) -> QkvError:
        """Not one pair is left: name the side, and in two files the file, that is empty."""
        empty = [i for i in (0, 1) if not filled[i]]
        if len(self.paths) == 2 and len(empty) == 1:
            where = str(self.paths[empty[0]])
        else:
            where = ", ".join(map(str, self.paths))
        return QkvError(
            where,
            _("an empty side: no pair has text on both sides"),
            _("give a sentence and its translation on each line"),
        )


def read_documents(paths: Iterable[str | Path], errors: str | None = None) -> Iterator[str]:
    """Whole documents: each text file is one, each line {"text": ...} of a JSONL is one; folders give all below."""
    pieces = []
    for piece, ends in read_pieces(paths, errors):
        pieces.append(piece)
        if ends:
            yield "".join(pieces)
            pieces = []


def read_pieces(
    paths: Iterable[str | Path], errors: str | None = None
) -> Iterator[tuple[str, bool]]:
    """Documents in pieces of about a megabyte, cut at line ends, each with whether its document ends there.

    So a file of any size passes through little memory. Each line of a text file ends in "\\n" here, the last one too.
    """
    for path in document_files(paths):
        if _is_jsonl(path):
            for number, line in _filled_lines(path, errors):
                yield _fields(path, number, line, ("text",))[0], True
        else:
            yield from _pieces_of_text(path, errors)


def document_files(paths: Iterable[str | Path]) -> list[Path]:
    """The files meant: a file is itself, a folder all its .txt, .md and .jsonl, sorted by path."""
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            refuse_pipe(path)
            files.append(path)
            continue
        below = sorted(
            p for p in path.rglob("*") if p.is_file() and p.name.lower().endswith(DOCUMENT_ENDS)
        )
        if not below:
            raise QkvError(
                path, _("no text below this folder"), _("put .txt, .md or .jsonl files there")
            )
        files += below
    return files


def refuse_unreadable(paths: Iterable[str | Path]) -> None:
    """Each file is opened once, so that nobody learns after an hour with the first that the last one is missing."""
    for path in paths:
        refuse_pipe(path)
        read_lines(path)  # what is wrong is said before the first line


def refuse_pipe(path: str | Path) -> None:
    """For what is read more than once: the second time a pipe, such as <(head a.txt), has nothing more to say."""
    if Path(path).is_fifo():
        raise QkvError(
            path, _("a pipe, which can be read only once"), _("write it to a file first")
        )


def fingerprint_of(paths: Iterable[str | Path]) -> str:
    """A SHA-256 of the contents of files, in this order; their names and dates do not matter."""
    whole = hashlib.sha256()
    for path in paths:
        try:
            with Path(path).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise QkvError(path, _("cannot be read"), error.strerror or str(error)) from None
    return whole.hexdigest()


def _aligned(source: Path, target: Path, errors: str | None) -> Iterator[Pair]:
    """Line n of one file with line n of the other; a file that ends early is noticed at its end."""
    sources, targets = read_lines(source, errors), read_lines(target, errors)
    for number, (left, right) in enumerate(zip_longest(sources, targets)):
        if left is None or right is None:
            longer = number + 1 + sum(1 for _ in (sources if right is None else targets))
            counts = (number, longer) if left is None else (longer, number)
            raise QkvError(
                f"{source}, {target}",
                _("{counts:,} lines against {counts2:,}", counts=counts[0], counts2=counts[1]),
                _("line n of one must translate line n of the other"),
            )
        yield left, right


def _tsv(path: Path, errors: str | None) -> Iterator[Pair]:
    """The first two columns; further ones (credits, scores) are left aside. A blank line is an empty pair."""
    for number, line in enumerate(read_lines(path, errors), start=1):
        columns = line.split("\t")
        if len(columns) < 2 and line.strip():
            raise QkvError(_line(path, number), _("no second column"), _("write source<TAB>target"))
        yield (columns[0], columns[1]) if len(columns) > 1 else ("", "")


def _jsonl(path: Path, errors: str | None) -> Iterator[Pair]:
    for number, line in _filled_lines(path, errors):
        source, target = _fields(path, number, line, ("source", "target"))
        yield source, target


def _fields(path: Path, number: int, line: str, keys: Sequence[str]) -> list[str]:
    """The texts under these keys of one JSON line, or what is wrong with that line."""
    example = "{" + ", ".join(f'"{key}": "..."' for key in keys) + "}"
    right = _("write {example}", example=example)
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise QkvError(_line(path, number), _("not JSON"), right) from None
    if not isinstance(record, dict):
        raise QkvError(_line(path, number), _("not a JSON object"), right)
    missing = [f"'{key}'" for key in keys if key not in record]
    if missing:
        names = ", ".join(missing)
        raise QkvError(_line(path, number), _("no {names}", names=names), right)
    strange = [f"'{key}'" for key in keys if not isinstance(record[key], str)]
    if strange:
        names = ", ".join(strange)
        raise QkvError(_line(path, number), _("{names} is not text", names=names), right)
    return [mend_surrogates(record[key]) for key in keys]


def _pieces_of_text(path: Path, errors: str | None) -> Iterator[tuple[str, bool]]:
    held: list[str] = []
    size = 0
    for line in read_lines(path, errors):
        if size >= _PIECE:
            yield "".join(held), False
            held, size = [], 0
        held += [line, "\n"]
        size += len(line) + 1
    yield "".join(held), True


def _filled_lines(path: Path, errors: str | None) -> Iterator[tuple[int, str]]:
    """The lines of a JSONL that hold something, with their numbers: a blank one there is only layout."""
    return ((n, line) for n, line in enumerate(read_lines(path, errors), start=1) if line.strip())


def _is_jsonl(path: Path) -> bool:
    return path.name.lower().removesuffix(".gz").endswith((".jsonl", ".ndjson"))


def _line(path: Path, number: int) -> str:
    return _("{path}, line {number}", path=path, number=number)
