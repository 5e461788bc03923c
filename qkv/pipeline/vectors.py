"""Write vectors incrementally to a .npy matrix or a .jsonl file, atomically.

See docs/guides/embeddings.md.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from qkv.files import VECTOR_FILES, atomic_path, check_suffix

__all__ = ["VectorWriter"]


class VectorWriter:
    """Writer of a vector file; nothing remains after an error.

    Example:
        with VectorWriter("captions.npy", embedder.d_model) as out:
            out.add(texts, embedder(texts))

    Attributes:
        path: The file.
        width: The number of dimensions.
        count: The number of vectors written.
    """

    def __init__(self, path: str | Path, width: int):
        """Make a writer.

        Args:
            path: A file name with .npy or .jsonl; a device or FIFO may have any name.
            width: The number of dimensions.

        Raises:
            QkvError: The file name has another suffix.
        """
        self.path, self.width, self.count = Path(path), width, 0
        check_suffix(self.path, VECTOR_FILES)
        self._is_matrix = self.path.suffix.lower() == ".npy"  # /dev/null gets JSON lines

    def __enter__(self) -> "VectorWriter":
        with ExitStack() as stack:
            self.file = stack.enter_context(stack.enter_context(atomic_path(self.path)).open("wb"))
            stack.push(self._finish)
            if self._is_matrix:
                self._write_header()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Rename the temporary file, or delete it after an error."""
        self.stack.__exit__(*error)

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Append vectors.

        Args:
            texts: Their texts, written to a .jsonl file.
            vectors: (texts, width).
        """
        assert vectors.shape == (len(texts), self.width), vectors.shape
        self.count += len(vectors)
        if self._is_matrix:
            self.file.write(vectors.astype("<f4", copy=False).tobytes())
        else:
            self.file.write("".join(map(as_line, texts, vectors)).encode())

    def _finish(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._is_matrix:
            self.file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        """Write the header; numpy pads it so that the number of rows can grow."""
        shape: dict[str, Any] = {
            "descr": "<f4",
            "fortran_order": False,
            "shape": (self.count, self.width),
        }
        np.lib.format.write_array_header_1_0(self.file, shape)


def as_line(text: str, vector: np.ndarray) -> str:
    """Return {"text": "...", "vector": [...]} and a newline."""
    numbers = ", ".join(map(str, vector))  # the shortest digits that round-trip float32
    return f'{{"text": {json.dumps(text, ensure_ascii=False)}, "vector": [{numbers}]}}\n'
