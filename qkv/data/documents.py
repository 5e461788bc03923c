"""Documents on disk as one long row of ids, each ended by <eos>.

In: text files, folders and JSONL, or a share of them; a tokenizer. Out: a Store, written in a stream once and reused as long
as files and tokenizer stay the same. Told in docs/language-models.md, "Data".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from qkv.data.corpus import document_files, fingerprint_of, read_pieces
from qkv.data.pairs import Encoder
from qkv.data.store import Store, reusable, write_store

TOGETHER = 1 << 20  # characters encoded at once: the tokenizer is fast in batches

Piece = tuple[str, bool]  # text, and whether its document ends with it


class Documents:
    """The documents of these files, read as often as they are asked for, a megabyte at a time."""

    def __init__(self, paths: Sequence[str | Path]):
        self.files = document_files(paths)

    def __iter__(self) -> Iterator[Piece]:
        return (
            piece for piece in read_pieces(self.files) if piece[0]
        )  # a document without text is none

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """What tells whether the texts are still the same."""
        return {
            "files": fingerprint_of(self.files),
            "kinds": " ".join(file.suffix for file in self.files),
        }

    @cached_property
    def characters(self) -> int:
        return sum(len(text) for text, _ in self)


@dataclass(frozen=True)
class Part:
    """The characters of documents from `begin` up to `end`; one that is cut ends there and begins there."""

    documents: Documents
    begin: int
    end: int

    def __iter__(self) -> Iterator[Piece]:
        at = 0
        for text, ends in self.documents:
            part = text[max(0, self.begin - at) : max(0, self.end - at)]
            at += len(text)
            if part:
                yield part, ends or at >= self.end
            if at >= self.end:
                return

    @property
    def fingerprint(self) -> dict[str, str]:
        return self.documents.fingerprint | {"characters": f"{self.begin} to {self.end}"}


def keep_documents(
    folder: str | Path, texts: Documents | Part, tokenizer: Encoder, eos_id: int
) -> Store:
    """All ids, one after the other: store.ids; encoded again only when texts or tokenizer have changed.

    The rows of this store are the pieces as they were read; where a document ends, <eos> says.
    """
    fingerprint = texts.fingerprint | {"tokenizer": tokenizer.fingerprint, "eos": str(eos_id)}
    stored = reusable(folder, fingerprint)
    if stored is None:
        stored = write_store(
            folder, _encoded(texts, tokenizer, eos_id), tokenizer.vocab_size, fingerprint
        )
    return stored


def count_bytes(texts: Iterable[Piece]) -> int:
    """The size of the texts in UTF-8."""
    return sum(len(text.encode()) for text, _ in texts)


def _encoded(pieces: Iterable[Piece], tokenizer: Encoder, eos_id: int) -> Iterator[np.ndarray]:
    for some in _together(pieces):
        for ids, (_, ends) in zip(
            tokenizer.encode_batch([text for text, _ in some]), some, strict=True
        ):
            yield np.array([*ids, eos_id] if ends else ids, np.int64)


def _together(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Small documents in batches of about a megabyte."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece[0])
        if size >= TOGETHER:
            yield held
            held, size = [], 0
    if held:
        yield held
