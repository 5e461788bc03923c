"""Sentences that mean the same, a group a line: pairs, several captions of one picture, a sentence and its translation.

In: a TSV or JSONL, or files aligned line by line. Out: a stream of groups; the same on disk, read when asked for.
Told in docs/embedding.md, "Contrastive pairs".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from qkv.data.corpus import fingerprint_of
from qkv.data.hold_out import is_held_out
from qkv.data.store import Store, StoreWriter, TextStore, reusable
from qkv.errors import QkvError
from qkv.messages import _
from qkv.text.lines import mend_surrogates, read_lines

PARTS = ("texts", "members", "negatives")
MANY = 1 << 32  # sentences are numbered below this


@dataclass(frozen=True)
class Group:
    """Sentences of one meaning, and perhaps one that looks alike and means something else."""

    texts: tuple[str, ...]
    negative: str = ""


@dataclass(frozen=True)
class Groups:
    """Groups read lazily, as often as they are asked for: groups_of("a.tsv"), groups_of("a.zh", "a.en").

    With `hard_negatives` the third column means something else. Of `every` groups one is held out, or all others are.
    """

    paths: tuple[Path, ...]
    hard_negatives: bool = False
    every: int = 0
    held_out: bool = False

    def __iter__(self) -> Iterator[Group]:
        kept = 0
        for number, group in enumerate(filter(None, (self._group(*one) for one in self._lines()))):
            # Groups are counted, not lines: blank ones between them must not take the places of those held out.
            if not self.every or is_held_out(number, self.every) == self.held_out:
                kept += 1
                yield group
        if not kept:
            names = ", ".join(map(str, self.paths))
            raise QkvError(
                names,
                _("no line has two sentences"),
                _("give two sentences of one meaning on each line"),
            )

    def share(self, every: int, held_out: bool) -> "Groups":
        """Every `every`-th group, or all the others: one file serves for training and validation."""
        return replace(self, every=every, held_out=held_out)

    def fingerprint(self) -> dict[str, str]:
        """What tells whether the same groups would be read again."""
        choices = f"{len(self.paths)} {self.hard_negatives} {self.every} {self.held_out}"
        return {"files": fingerprint_of(self.paths), "groups": choices}

    def _lines(self) -> Iterator[tuple[str, Group]]:
        """Each line as it stands, some sentences perhaps empty, with where it stands."""
        if len(self.paths) > 1:
            return _aligned(self.paths, self.hard_negatives)
        name = self.paths[0].name.lower().removesuffix(".gz")
        return (_jsonl if name.endswith((".jsonl", ".ndjson")) else _tsv)(
            self.paths[0], self.hard_negatives
        )

    def _group(self, where: str, line: Group) -> Group | None:
        """The sentences that are there, each once; a single one teaches nothing."""
        negative = line.negative.strip()
        texts = tuple(dict.fromkeys(sentence for one in line.texts if (sentence := one.strip())))
        if negative and negative in texts:
            wrong = _("the hard negative is one of the sentences themselves")
            raise QkvError(where, wrong, _("give one that means something else"))
        return Group(texts, negative) if len(texts) > 1 else None


def groups_of(*paths: str | Path, hard_negatives: bool = False) -> Groups:
    """The groups of one TSV or JSONL, of aligned files, or of those that a pattern such as train.*.en names, sorted."""
    files = tuple(Path(path) for path in paths)
    if len(files) == 1 and "*" in files[0].name:
        files = tuple(sorted(files[0].parent.glob(files[0].name)))
        if len(files) < 2:
            wrong = _("the pattern names {n_files} files", n_files=len(files))
            raise QkvError(paths[0], wrong, _("it should name two or more, aligned line by line"))
    return Groups(files, hard_negatives)


# ---- reading -------------------------------------------------------------------------------------------------------


def _columns(line: Sequence[str], hard_negatives: bool) -> Group:
    """Sentences of one meaning side by side; with hard negatives the third means something else."""
    return Group(tuple(line[:2]), "".join(line[2:3])) if hard_negatives else Group(tuple(line))


def _aligned(paths: tuple[Path, ...], hard_negatives: bool) -> Iterator[tuple[str, Group]]:
    """Line n of every file; a file that ends early is noticed at its end."""
    for number, line in enumerate(zip_longest(*map(read_lines, paths)), start=1):
        if None in line:
            short = [
                str(path) for path, sentence in zip(paths, line, strict=True) if sentence is None
            ]
            wrong = _("only {number:,} lines, others have more", number=number - 1)
            raise QkvError(", ".join(short), wrong, _("line n of all files must mean the same"))
        yield _place(paths[0], number), _columns(line, hard_negatives)


def _tsv(path: Path, hard_negatives: bool) -> Iterator[tuple[str, Group]]:
    """Columns are sentences; a blank line is an empty group."""
    least = 3 if hard_negatives else 2
    for number, text in enumerate(read_lines(path), start=1):
        line = text.split("\t")
        if text.strip() and len(line) < least:
            wrong = _("{n_line} of {least} columns", n_line=len(line), least=least)
            shape = "<TAB>".join((_("sentence"), _("same meaning"), _("another meaning"))[:least])
            raise QkvError(_place(path, number), wrong, _("write {shape}", shape=shape))
        yield _place(path, number), _columns(line, hard_negatives)


def _jsonl(path: Path, hard_negatives: bool) -> Iterator[tuple[str, Group]]:
    for number, text in enumerate(read_lines(path), start=1):
        if text.strip():
            yield _place(path, number), _fields(_place(path, number), text, hard_negatives)


def _fields(where: str, text: str, hard_negatives: bool) -> Group:
    """{"texts": [...]} is a group of any size, {"source", "target"} a pair; beside either stands perhaps a "negative"."""
    example = '{"texts": ["...", "..."]}, {"source": "...", "target": "..."}'
    try:
        record: Any = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    match record:
        case {"texts": [*texts]}:
            found = texts
        case {"source": source, "target": target}:
            found = [source, target]
        case _:
            found = []
    if len(found) < 2 or not all(isinstance(one, str) for one in found):
        raise QkvError(where, _("no two sentences"), _("write {example}", example=example))
    sentences = tuple(map(mend_surrogates, found))
    negative = record.get("negative")
    if not negative:
        return Group(sentences)
    if not isinstance(negative, str):
        raise QkvError(where, _("'negative' is not text"), _("write one sentence"))
    if (
        not hard_negatives
    ):  # the opposite of what it says must not be learned from it, nor should it be lost unnoticed
        wrong = _("has a 'negative', and hard_negatives is false")
        raise QkvError(where, wrong, _("set hard_negatives=true, or leave the field out"))
    return Group(sentences, mend_surrogates(negative))


def _place(path: Path, number: int) -> str:
    return _("{path}, line {number}", path=path, number=number)


# ---- keeping -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupStore:
    """Groups on disk: all sentences one after the other, and for each group the numbers of its own."""

    texts: TextStore
    members: Store  # row g: the numbers of the sentences of group g
    negatives: Store  # row g: the number of its hard negative, or nothing

    def __len__(self) -> int:
        return len(self.members)


def keep_groups(folder: str | Path, groups: Groups) -> GroupStore:
    """The groups as stores below `folder`; read again only when the files have changed."""
    folders = {part: Path(folder) / part for part in PARTS}
    fingerprint = groups.fingerprint()
    stored = [reusable(one, fingerprint) for one in folders.values()]
    if None in stored or len(stored[1] or ()) != len(stored[2] or ()):
        _write(folders, groups, fingerprint)
    return GroupStore(
        TextStore.open(folders["texts"]), *(Store.open(folders[part]) for part in PARTS[1:])
    )


def _write(folders: Mapping[str, Path], groups: Groups, fingerprint: dict[str, str]) -> None:
    count = 0
    with (
        StoreWriter(folders["texts"], 256, fingerprint) as texts,
        StoreWriter(folders["members"], MANY, fingerprint) as members,
        StoreWriter(folders["negatives"], MANY, fingerprint) as negatives,
    ):
        for group in groups:
            n, odd = len(group.texts), [group.negative] if group.negative else []
            for sentence in (*group.texts, *odd):
                texts.add_text(sentence)
            members.add(range(count, count + n))
            negatives.add(range(count + n, count + n + len(odd)))
            count += n + len(odd)
