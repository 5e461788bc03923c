"""Memory-mapped store for rows of token ids or text, so that a corpus may be larger than memory.

See docs/guides/data.md.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from qkv.errors import QkvError
from qkv.files import sync
from qkv.json_files import MAX_JSON_BYTES, read_regular
from qkv.messages import _

FORMAT = "qkv-rows-1"
HEADER, IDS, OFFSETS = "store.json", "ids.bin", "offsets.bin"
TEXT_VOCAB_SIZE = 1 << 8  # a row of a text store is a line in UTF-8
_BUFFER_IDS = 1 << 18  # written to disk at once

Fingerprint = dict[str, str]  # identifies the data and tokenizer of a store
Row = Sequence[int] | np.ndarray | str


class Store:
    """Memory-mapped rows of ids: len(store), store[i] and store.lengths."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, header: Mapping[str, Any]):
        self.ids = ids  # (all ids,), the rows concatenated
        self.offsets = offsets  # (rows + 1,), row i is ids[offsets[i]:offsets[i + 1]]
        self.fingerprint: Fingerprint = header["fingerprint"]
        self.dropped: int = header["dropped"]  # source rows that were skipped
        self.checksum: str = header["check"]

    @classmethod
    def open(cls, folder: str | Path) -> "Store":
        """Open a store and verify its checksums, which reads all of it (1 s per GB)."""
        folder = Path(folder)
        header = _read_header(folder)
        offsets = _map(folder / OFFSETS, "<i8", header["rows"] + 1, header["crc_offsets"])
        ids = _map(folder / IDS, header["dtype"], header["ids"], header["crc_ids"])
        return cls(ids, offsets, header)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        index = range(len(self))[index]
        return self.ids[self.offsets[index] : self.offsets[index + 1]]  # (length,)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)  # (rows,)

    def take(self, indices: Iterable[int]) -> list[np.ndarray]:
        """Return the rows of these indices."""
        return [self[i] for i in indices]


class TextStore:
    """Memory-mapped lines of text in UTF-8."""

    def __init__(self, rows: Store):
        self.rows = rows

    @classmethod
    def open(cls, folder: str | Path) -> "TextStore":
        return cls(Store.open(folder))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.rows[index].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def take(self, indices: Iterable[int]) -> list[str]:
        """Return the lines of these indices."""
        return [self[i] for i in indices]


class StoreWriter:
    """Write a store atomically: it appears when the `with` block ends without an error.

    Args:
        folder: The folder of the store.
        vocab_size: Ids are below this; TEXT_VOCAB_SIZE for texts.
        fingerprint: Identifies the data and tokenizer of the rows.
    """

    def __init__(self, folder: str | Path, vocab_size: int, fingerprint: Fingerprint):
        self.folder, self.vocab_size, self.fingerprint = Path(folder), vocab_size, fingerprint
        self.dtype = np.min_scalar_type(vocab_size - 1).str  # "|u1", "<u2" or "<u4"
        self.dropped = self._n_rows = self._n_ids = self._n_buffered = 0
        self._buffer: list[np.ndarray] = []

    def __enter__(self) -> Self:
        with _writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._parts = [_Part(self.folder / name) for name in (IDS, OFFSETS, HEADER)]
        self._ids, self._offsets, self._header = self._parts
        self._offsets.write(np.zeros(1, "<i8").data)
        return self

    def add(self, row: Row) -> None:
        """Append a row of ids, or a line as its UTF-8 bytes."""
        row = np.frombuffer(row.encode(), np.uint8) if isinstance(row, str) else row
        self._buffer.append(np.asarray(row, dtype=np.int64))
        self._n_buffered += len(row) + 1  # + 1: empty rows also use memory
        if self._n_buffered >= _BUFFER_IDS:
            self._flush()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                with _writing(self.folder):
                    self._finish()
        finally:
            for part in self._parts:
                part.discard()

    def _flush(self) -> None:
        if not self._buffer:
            return
        flat = np.concatenate(self._buffer)  # (ids of these rows,)
        assert flat.size == 0 or (flat.min() >= 0 and flat.max() < self.vocab_size), (
            "an id outside the vocabulary"
        )
        ends = self._n_ids + np.cumsum([len(row) for row in self._buffer])
        with _writing(self.folder):
            self._ids.write(flat.astype(self.dtype).data)
            self._offsets.write(ends.astype("<i8").data)
        self._n_rows, self._n_ids = self._n_rows + len(ends), int(ends[-1])
        self._buffer, self._n_buffered = [], 0

    def _finish(self) -> None:
        """Remove the old header, then replace the files, the header last."""
        self._flush()
        header = {
            "format": FORMAT,
            "dtype": self.dtype,
            "rows": self._n_rows,
            "ids": self._n_ids,
            "dropped": self.dropped,
            "crc_ids": self._ids.crc,
            "crc_offsets": self._offsets.crc,
            "fingerprint": self.fingerprint,
        }
        self._header.write(_with_checksum(header))
        (self.folder / HEADER).unlink(missing_ok=True)
        for part in self._parts:
            part.rename()
        sync(self.folder)


def write_store(
    folder: str | Path, rows: Iterable[Row], vocab_size: int, fingerprint: Fingerprint
) -> Store:
    """Write rows to a store, replacing an existing one, and open it."""
    with StoreWriter(folder, vocab_size, fingerprint) as writer:
        for row in rows:
            writer.add(row)
    return Store.open(folder)


def reuse_or_write(
    folder: str | Path, rows: Iterable[Row], vocab_size: int, fingerprint: Fingerprint
) -> Store:
    """Open the store of a folder if it is current, else write it; only then are the rows read."""
    stored = open_if_current(folder, fingerprint)
    return write_store(folder, rows, vocab_size, fingerprint) if stored is None else stored


def open_if_current(folder: str | Path, fingerprint: Fingerprint) -> Store | None:
    """Open the store of a folder if it is complete and has this fingerprint, else return None."""
    try:
        store = Store.open(folder)
    except QkvError:
        return None
    return store if store.fingerprint == fingerprint else None


class _Part:
    """A file written under a temporary name, with a running checksum, and renamed at the end.

    The old file is replaced, not overwritten: processes that have it mapped keep reading it.
    """

    def __init__(self, path: Path):
        self.path, self.temporary = path, path.with_name(f"{path.name}.part")
        self.temporary.unlink(missing_ok=True)  # left by a killed writer
        self.file: BinaryIO = self.temporary.open("wb")
        self.crc = 0

    def write(self, data: memoryview | bytes) -> None:
        self.file.write(data)
        self.crc = zlib.crc32(data, self.crc)

    def rename(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.temporary.replace(self.path)

    def discard(self) -> None:
        """Delete the temporary file, if it was not renamed."""
        with suppress(OSError):  # closing fails again on a full disk; the file is deleted anyway
            self.file.close()
        self.temporary.unlink(missing_ok=True)


def _read_header(folder: Path) -> dict[str, Any]:
    """Read the header and verify its format and checksum."""
    if not (folder / HEADER).exists():
        raise _damaged(folder, _("incomplete store: {header} is missing", header=HEADER))
    try:
        raw = read_regular(folder / HEADER, MAX_JSON_BYTES)
        header = json.loads(raw)
        valid = header["format"] == FORMAT and raw == _with_checksum(
            {k: v for k, v in header.items() if k != "check"}
        )
    except (QkvError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise _damaged(folder / HEADER, _("damaged"))
    return header


def _map(path: Path, dtype: str, count: int, crc: int) -> np.ndarray:
    """Memory-map a file, if it has the size and the checksum given in the header."""
    size = path.stat().st_size if path.is_file() else 0
    expected = count * np.dtype(dtype).itemsize
    if size != expected:
        raise _damaged(
            path, _("damaged: {size:,} bytes instead of {expected:,}", size=size, expected=expected)
        )
    # A plain view: slicing a memmap is three times slower. An empty file cannot be mapped.
    mapped = np.memmap(path, dtype, mode="r").view(np.ndarray) if count else np.zeros(0, dtype)
    if zlib.crc32(mapped.data) != crc:
        raise _damaged(path, _("damaged: wrong checksum"))
    return mapped


def _with_checksum(header: Mapping[str, Any]) -> bytes:
    """Serialize the header with its checksum."""
    check = f"{zlib.crc32(json.dumps(header).encode()):08x}"
    return json.dumps({**header, "check": check}, indent=1).encode()


def _damaged(path: Path, wrong: str) -> QkvError:
    return QkvError(path, wrong, _("delete the folder; it is rebuilt from the text"))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Report an error of the operating system inside the block as one of this folder."""
    try:
        yield
    except OSError as error:
        raise QkvError(folder, _("cannot be written"), error.strerror or str(error)) from None
