"""Encode documents into one stored stream of ids, each document followed by <eos>.

The store is reused while files and tokenizer are unchanged. See docs/guides/training.md.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from qkv.data.corpus import document_files, fingerprint_of, read_pieces
from qkv.data.store import Fingerprint, Store, reuse_or_write
from qkv.text.tokenizer import Tokenizer

BATCH_CHARS = 1 << 20  # encoded at once: the tokenizer is faster in batches

Piece = tuple[str, bool]  # a text, and whether it is the end of its document


class Documents:
    """The documents of files, an iterable of pieces of about a megabyte."""

    def __init__(self, paths: Sequence[str | Path]):
        self.files = document_files(paths)

    def __iter__(self) -> Iterator[Piece]:
        return (piece for piece in read_pieces(self.files) if piece[0])  # skip empty documents

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Entries that change if the texts change."""
        return {
            "files": fingerprint_of(self.files),
            "kinds": " ".join(file.suffix for file in self.files),
        }

    @cached_property
    def characters(self) -> int:
        return sum(len(text) for text, _ in self)


@dataclass(frozen=True)
class DocumentSlice:
    """The characters [begin, end) of documents; a document that is split becomes two."""

    documents: Documents
    begin: int
    end: int

    def __iter__(self) -> Iterator[Piece]:
        position = 0
        for text, ends in self.documents:
            part = text[max(0, self.begin - position) : max(0, self.end - position)]
            position += len(text)
            if part:
                yield part, ends or position >= self.end
            if position >= self.end:
                return

    @property
    def fingerprint(self) -> Fingerprint:
        return self.documents.fingerprint | {"characters": f"{self.begin} to {self.end}"}


@dataclass(frozen=True)
class NewDocuments:
    """Held-out documents without those that are also training documents."""

    held_out: Documents | DocumentSlice
    train: Documents | DocumentSlice

    def __iter__(self) -> Iterator[Piece]:
        own = set(map(_hash, _whole_documents(self.held_out)))
        known = own.intersection(map(_hash, _whole_documents(self.train)))
        is_start = True
        for text, ends in self.held_out:
            if not (is_start and ends and _hash(text) in known):
                yield text, ends
            is_start = ends

    @property
    def fingerprint(self) -> Fingerprint:
        train = self.train.fingerprint
        return self.held_out.fingerprint | {f"not {name}": train[name] for name in train}


def _whole_documents(pieces: Iterable[Piece]) -> Iterator[str]:
    """Yield the documents that consist of one piece."""
    is_start = True
    for text, ends in pieces:
        if is_start and ends:
            yield text
        is_start = ends


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.strip().encode(), digest_size=8).digest()


def store_documents(
    folder: Path, texts: Documents | DocumentSlice | NewDocuments, tokenizer: Tokenizer, eos_id: int
) -> Store:
    """Encode documents into a store, or open the existing one if nothing has changed.

    `store.ids` is the stream of all ids. The rows of the store are pieces; <eos> ends a document.
    """
    fingerprint = texts.fingerprint | {"tokenizer": tokenizer.fingerprint, "eos": str(eos_id)}
    rows = _encoded(texts, tokenizer, eos_id)
    return reuse_or_write(folder, rows, tokenizer.vocab_size, fingerprint)


def count_bytes(texts: Iterable[Piece]) -> int:
    """Return the size of the texts in UTF-8."""
    return sum(len(text.encode()) for text, _ in texts)


def _encoded(pieces: Iterable[Piece], tokenizer: Tokenizer, eos_id: int) -> Iterator[np.ndarray]:
    for batch in _batches(pieces):
        encoded = tokenizer.encode_batch([text for text, _ in batch])
        for ids, (_, ends) in zip(encoded, batch, strict=True):
            yield np.array([*ids, eos_id] if ends else ids, np.int64)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Group small documents into batches of about a megabyte."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece[0])
        if size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
