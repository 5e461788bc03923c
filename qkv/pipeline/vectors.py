"""Vectors on disk: a .npy that grows row by row, or a .jsonl with a line for each text.

In: vectors, some at a time. Out: a whole file or none, however many there are and without knowing their number before.
Told in docs/embedding.md, "Use".
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from qkv.errors import QkvError
from qkv.language import say

KINDS = (".npy", ".jsonl")


class VectorWriter:
    """with VectorWriter("a.npy", 384) as out: out.add(texts, vectors)."""

    def __init__(self, path: str | Path, width: int):
        self.path, self.width, self.count = Path(path), width, 0
        if self.path.suffix not in KINDS:
            raise QkvError(path, say("no kind of file for vectors", "不是向量文件的类型"),
                           say("name it .npy or .jsonl", "请用 .npy 或 .jsonl 结尾"))
        self.unfinished = self.path.with_name(f".{self.path.name}.{os.getpid()}.unfinished")

    def __enter__(self) -> "VectorWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.unfinished.open("wb")
        except OSError as error:
            raise self._unwritable(error) from None
        if self.path.suffix == ".npy":
            self._write_header()
        return self

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Rows of the matrix, in the order they come."""
        assert vectors.shape == (len(texts), self.width), vectors.shape
        self.count += len(vectors)
        try:
            if self.path.suffix == ".npy":
                self.file.write(vectors.astype("<f4", copy=False).tobytes())
            else:
                self.file.write("".join(map(as_line, texts, vectors)).encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The file gets its name only when all of it is there."""
        try:
            if kind is None and self.path.suffix == ".npy":
                self.file.seek(0)
                self._write_header()
            self.file.close()
            if kind is None:
                self.unfinished.replace(self.path)
        except OSError as problem:
            raise self._unwritable(problem) from None
        finally:
            with suppress(OSError):  # it is there only if something went wrong
                self.unfinished.unlink()

    def _write_header(self) -> None:
        """numpy leaves room in its header for the number of rows to grow."""
        shape: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (self.count, self.width)}
        np.lib.format.write_array_header_1_0(self.file, shape)

    def _unwritable(self, error: OSError) -> QkvError:
        return QkvError(self.path, say("cannot be written", "无法写入"), str(error.strerror))


def as_line(text: str, vector: np.ndarray) -> str:
    """{"text": "...", "vector": [...]} and a line end."""
    numbers = ", ".join(map(str, vector))  # the shortest digits that give back this very float32
    return f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
