"""Semantic search: a vector index of the lines of a file, with exact k-nearest-neighbor search.

The index is rebuilt when the file changes. See docs/guides/embeddings.md.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkv.arguments import check_texts, check_type, with_settings
from qkv.data.corpus import check_not_pipe, fingerprint_of
from qkv.errors import QkvError
from qkv.evaluate.similarity import nearest
from qkv.files import check_output_folder
from qkv.json_files import check_regular, read_json
from qkv.limits import K_LIMIT
from qkv.messages import _
from qkv.pipeline.embed_options import EmbedOptions
from qkv.pipeline.embedder import Embedder
from qkv.pipeline.vectors import VectorWriter
from qkv.text.lines import read_lines, write_text

__all__ = ["Hit", "Index"]

METADATA, VECTORS = "index.json", "vectors.npy"
OLD_TRUNCATIONS = {"cut": "truncate", "split": "chunk"}  # the field "long" of older files


@dataclass(frozen=True)
class Hit:
    """A line found by Index.search.

    >>> Hit(3, 0.82, "a dog runs").line
    3

    Attributes:
        line: The number of the line, counted from 1.
        score: Its cosine similarity with the query.
        text: The line.
    """

    line: int
    score: float
    text: str


@dataclass(frozen=True)
class Index:
    """A vector index of the lines of a file.

    Example:
        index = Index.open(embedder, "captions.txt")
        for hit in index.search(["a dog runs"], k=5)[0]:
            print(hit.score, hit.line, hit.text)

    Attributes:
        embedder: The embedding model.
        options: Pooling, dimensions and truncation.
        sentences: The file, with one sentence per line.
        vectors: (lines, dimensions), L2-normalized, memory-mapped.
    """

    embedder: Embedder
    options: EmbedOptions
    sentences: Path
    vectors: np.ndarray

    @classmethod
    def open(
        cls,
        embedder: Embedder,
        sentences: str | Path,
        folder: str | Path | None = None,
        options: EmbedOptions | None = None,
        rebuild: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> "Index":
        """Open the index of a file; it is built if it is missing or out of date.

        Args:
            embedder: The embedding model.
            sentences: A file with one sentence per line.
            folder: The folder of the index; by default the file name with .index.
            options: Pooling, dimensions and truncation; vectors are always normalized.
            rebuild: Whether to build the index again.
            progress: Called after each batch with the number of lines done.

        Raises:
            QkvError: There is no such file, or the folder holds vectors of another model or other
                files.
        """
        sentences = Path(sentences)
        folder = check_index_folder(sentences, folder)
        options = with_settings(EmbedOptions, options, {"normalize": True})
        expected = make_metadata(embedder, sentences, options)
        has_vectors = (folder / VECTORS).exists()
        stored = read_metadata(folder) if has_vectors and not rebuild else None
        if stored is not None and stored.get("model") != expected["model"]:
            raise QkvError(
                folder,
                _("holds vectors of another model"),
                _("use --rebuild, or --index with another folder"),
            )
        if stored != expected:
            # Not equal to `expected`: an interrupted build is repeated.
            write_metadata(folder, expected | {"complete": False})
            try:
                build(embedder, sentences, folder, options, progress)
            except QkvError:  # of the sentences: nothing was built
                if not has_vectors:
                    (folder / METADATA).unlink()
                raise
            write_metadata(folder, expected)
        return cls(embedder, options, sentences, read_vectors(folder))

    def search(self, queries: Sequence[str], k: int = 5) -> list[list[Hit]]:
        """Find the lines that are nearest to each query.

        Args:
            queries: The queries.
            k: The number of lines for each query.

        Returns:
            The k nearest lines for each query, nearest first.
        """
        queries, k = check_texts("queries", queries), check_type("k", k, int)
        K_LIMIT.check("k", k)
        indices, scores = nearest(self.vectors, self.embedder.embed(queries, self.options), k)
        texts = read_rows(self.sentences, indices.flatten().tolist())
        return [
            [
                Hit(row + 1, float(score), texts[row])
                for row, score in zip(rows, row_scores, strict=True)
            ]
            for rows, row_scores in zip(indices.tolist(), scores, strict=True)
        ]


def make_metadata(embedder: Embedder, sentences: Path, options: EmbedOptions) -> dict[str, Any]:
    """Return the metadata of an index: everything its vectors depend on."""
    check_not_pipe(sentences)
    if not sentences.is_file():
        raise QkvError(sentences, _("no such file"), _("check the path"))
    return {
        "sentences": fingerprint_of([sentences]),
        "model": embedder.fingerprint,
        "truncation": options.truncation,
        "pooling": options.pooling or embedder.pooling,
        "dimensions": options.dimensions or embedder.d_model,
    }


def check_index_folder(sentences: str | Path, folder: str | Path | None) -> Path:
    """Return the folder of an index, which may be missing, empty or an index, and nothing else."""
    default = Path(sentences).with_name(f"{Path(sentences).name}.index")
    path = Path(folder) if folder else default
    check_output_folder(path, is_own=is_index(path))
    return path


def is_index(folder: Path) -> bool:
    """Whether a folder is an index, or has only its files, of which index.json is damaged."""
    if read_metadata(folder) is not None:
        return True
    try:
        files = {child.name: child.is_file() for child in folder.iterdir()}
    except OSError:  # reported by check_output_folder
        return False
    return files == {METADATA: True, VECTORS: True}


def write_metadata(folder: Path, metadata: dict[str, Any]) -> None:
    write_text(folder / METADATA, json.dumps(metadata, indent=2) + "\n")


def read_metadata(folder: Path) -> dict[str, Any] | None:
    """Read index.json; None if the folder is not an index."""
    try:
        stored = read_json(folder / METADATA)
    except QkvError:
        return None
    if not isinstance(stored, dict) or not {"sentences", "model"} <= stored.keys():
        return None
    if "long" in stored:
        stored["truncation"] = OLD_TRUNCATIONS.get(stored.pop("long"))
    return stored


def build(
    embedder: Embedder,
    sentences: Path,
    folder: Path,
    options: EmbedOptions,
    progress: Callable[[int], None] | None,
) -> None:
    """Write the vectors of all lines."""
    with VectorWriter(folder / VECTORS, options.dimensions or embedder.d_model) as out:
        for texts, vectors in embedder.embed_lines(
            read_lines(sentences), str(sentences), options, progress
        ):
            out.add(texts, vectors)


def read_vectors(folder: Path) -> np.ndarray:
    """Memory-map the vectors of an index."""
    try:
        check_regular(folder / VECTORS)
        return np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
    except (QkvError, OSError, ValueError, EOFError):
        raise QkvError(folder / VECTORS, _("damaged"), _("use --rebuild")) from None


def read_rows(sentences: Path, rows: Iterable[int]) -> dict[int, str]:
    """Return the lines of these indices, counted from 0."""
    remaining, texts = set(rows), dict[int, str]()
    for row, line in enumerate(read_lines(sentences)):
        if row in remaining:
            texts[row] = line
            remaining.remove(row)
            if not remaining:
                break
    return texts
