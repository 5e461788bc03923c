"""Searching by meaning: the sentences of a file, their vectors on disk, and the nearest ones to a question.

In: an embedder and a file of sentences, one a line. Out: the k lines with the largest cosine, exactly. The vectors are
kept and made anew when the file changes. Told in docs/embedding.md, "Search".
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.data.corpus import fingerprint_of, refuse_pipe
from qkv.errors import QkvError
from qkv.evaluate.similarity import nearest
from qkv.messages import _
from qkv.pipeline.embedder import Embedder, Wishes
from qkv.pipeline.vectors import VectorWriter
from qkv.text.lines import read_lines, write_text

ABOUT, VECTORS = "index.json", "vectors.npy"


@dataclass(frozen=True)
class Hit:
    """A line of the file (counted from 1) and its cosine with the question."""

    line: int
    score: float
    text: str


@dataclass(frozen=True)
class Index:
    """index = Index.open(embedder, "captions.txt"); index.search(["a dog runs"], k=5)."""

    embedder: Embedder
    wishes: Wishes
    sentences: Path
    vectors: np.ndarray  # (lines, dimensions), of length one, read from the disk as they are needed

    @classmethod
    def open(
        cls,
        embedder: Embedder,
        sentences: str | Path,
        folder: str | Path | None = None,
        wishes: Wishes | None = None,
        rebuild: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> "Index":
        """The index of a file, beside it or in `folder`; made if it is missing, old or asked for."""
        sentences = Path(sentences)
        folder = Path(folder) if folder else sentences.with_name(f"{sentences.name}.index")
        wishes = Wishes(**{**vars(wishes or Wishes()), "normalize": True})
        wanted = about(embedder, sentences, wishes)
        kept = None if rebuild else read_about(folder)
        if kept is not None and kept.get("model") != wanted["model"]:
            raise QkvError(
                folder,
                _("holds vectors of another model"),
                _("use --rebuild, or --index with another folder"),
            )
        if kept != wanted:
            build(embedder, sentences, folder, wishes, progress)
            write_text(folder / ABOUT, json.dumps(wanted, indent=2) + "\n")
        return cls(embedder, wishes, sentences, read_vectors(folder))

    def search(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """The k nearest lines to each question, nearest first."""
        if k < 1:
            raise QkvError("k", _("{k} is too small", k=k), _("use 1 or more"))
        which, scores = nearest(self.vectors, self.embedder.embed(queries, self.wishes), k)
        texts = lines_at(self.sentences, which.flatten().tolist())
        return [
            [
                Hit(row + 1, float(score), texts[row])
                for row, score in zip(rows, row_scores, strict=True)
            ]
            for rows, row_scores in zip(which.tolist(), scores, strict=True)
        ]


def about(embedder: Embedder, sentences: Path, wishes: Wishes) -> dict[str, Any]:
    """What the vectors depend on."""
    refuse_pipe(sentences)
    if not sentences.is_file():
        raise QkvError(sentences, _("no such file"), _("check the path"))
    return {
        "sentences": fingerprint_of([sentences]),
        "model": embedder.fingerprint,
        "long": wishes.long,
        "pooling": wishes.pooling or embedder.pooling,
        "dimensions": wishes.dimensions or embedder.d_model,
    }


def read_about(folder: Path) -> dict[str, Any] | None:
    """What index.json says; None where there is no whole index."""
    try:
        told = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        return told if isinstance(told, dict) and (folder / VECTORS).exists() else None
    except (OSError, ValueError):
        return None


def build(
    embedder: Embedder,
    sentences: Path,
    folder: Path,
    wishes: Wishes,
    progress: Callable[[int], None] | None,
) -> None:
    """The vectors of all lines; while they are made, the folder holds no index."""
    (folder / ABOUT).unlink(missing_ok=True)
    with VectorWriter(folder / VECTORS, wishes.dimensions or embedder.d_model) as out:
        for texts, vectors in embedder.embed_lines(
            read_lines(sentences), str(sentences), wishes, progress
        ):
            out.add(texts, vectors)


def read_vectors(folder: Path) -> np.ndarray:
    try:
        return np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise QkvError(folder / VECTORS, _("damaged"), _("use --rebuild")) from None


def lines_at(sentences: Path, rows: Iterable[int]) -> dict[int, str]:
    """The lines with these numbers, counted from 0."""
    wanted = set(rows)
    found: dict[int, str] = {}
    for number, line in enumerate(read_lines(sentences)):
        if number in wanted:
            found[number] = line
            if len(found) == len(wanted):
                break
    return found
