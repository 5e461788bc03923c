"""Vectors on disk: a .npy that grows row by row, or a .jsonl with a line for each text.

In: vectors, some at a time. Out: a whole file or none, however many there are and without knowing their number before.
Told in docs/embedding.md, "Use".
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from qkv.errors import QkvError
from qkv.files import atomic_path
from qkv.messages import _

KINDS = (".npy", ".jsonl")


class VectorWriter:
    """with VectorWriter("a.npy", 384) as out: out.add(texts, vectors)."""

    def __init__(self, path: str | Path, width: int):
        self.path, self.width, self.count = Path(path), width, 0
        if self.path.suffix not in KINDS:
            raise QkvError(path, _("no kind of file for vectors"), _("name it .npy or .jsonl"))

    def __enter__(self) -> "VectorWriter":
        with ExitStack() as stack:
            self.file = stack.enter_context(stack.enter_context(atomic_path(self.path)).open("wb"))
            stack.push(self._finish)
            if self.path.suffix == ".npy":
                self._write_header()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """The file gets its name only when all of it is there."""
        self.stack.__exit__(*error)

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Rows of the matrix, in the order they come."""
        assert vectors.shape == (len(texts), self.width), vectors.shape
        self.count += len(vectors)
        if self.path.suffix == ".npy":
            self.file.write(vectors.astype("<f4", copy=False).tobytes())
        else:
            self.file.write("".join(map(as_line, texts, vectors)).encode())

    def _finish(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.path.suffix == ".npy":
            self.file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        """numpy leaves room in its header for the number of rows to grow."""
        shape: dict[str, Any] = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self.count, self.width),
        }
        np.lib.format.write_array_header_1_0(self.file, shape)


def as_line(text: str, vector: np.ndarray) -> str:
    """{"text": "...", "vector": [...]} and a line end."""
    numbers = ", ".join(map(str, vector))  # the shortest digits that give back this very float32
    return f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
