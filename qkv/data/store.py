"""Rows of ids, or of text, in memory-mapped files, so that a corpus may be larger than memory.

In: rows, streamed to disk once. Out: store[i], read from the disk when it is asked for.
Told in docs/data.md, "The store".
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from qkv.errors import QkvError
from qkv.files import sync
from qkv.messages import _

FORMAT = "qkv-rows-1"
HEADER, IDS, OFFSETS = "store.json", "ids.bin", "offsets.bin"
_FLUSH = 1 << 18  # ids held in memory before they go to disk

Row = Sequence[int] | np.ndarray


class Store:
    """Rows of ids on disk: len(store), store[i] and store.lengths; nothing is loaded before it is used."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, header: Mapping[str, Any]):
        self.ids = ids  # (all ids,), one row after the other
        self.offsets = offsets  # (rows + 1,), row i is ids[offsets[i]:offsets[i + 1]]
        self.fingerprint: dict[str, str] = header["fingerprint"]  # what the rows were made from
        self.dropped: int = header["dropped"]  # rows of the original that were left out
        self.checksum: str = header["check"]

    @classmethod
    def open(cls, folder: str | Path, check_ids: bool = True) -> "Store":
        """The store of a folder, or a refusal; `check_ids=False` spares the reading of all ids (1 s a gigabyte)."""
        folder = Path(folder)
        header = _read_header(folder)
        ids = _map(folder / IDS, header["dtype"], header["ids"])
        offsets = _map(folder / OFFSETS, "<i8", header["rows"] + 1)
        _check(folder / OFFSETS, offsets, header["crc_offsets"])
        if check_ids:
            _check(folder / IDS, ids, header["crc_ids"])
        return cls(ids, offsets, header)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]  # (length,)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)  # (rows,)

    def take(self, indices: Iterable[int]) -> list[np.ndarray]:
        """The rows of a batch, in the order asked for."""
        return [self[i] for i in indices]


class TextStore:
    """Lines of text on disk, in UTF-8: what a batch is tokenised from anew when BPE-dropout is on."""

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
        """The lines of a batch, in the order asked for."""
        return [self[i] for i in indices]


class StoreWriter:
    """Rows on their way to disk: the store appears when the `with` block ends well, and not at all otherwise.

    Values are below `vocab_size`; 256 is for text. `fingerprint` names what the rows are made from.
    """

    def __init__(self, folder: str | Path, vocab_size: int, fingerprint: Mapping[str, str]):
        self.folder, self.vocab_size, self.fingerprint = Path(folder), vocab_size, dict(fingerprint)
        self.dtype = "|u1" if vocab_size <= 1 << 8 else "<u2" if vocab_size <= 1 << 16 else "<u4"
        self.dropped = 0
        self._waiting: list[np.ndarray] = []
        self._n_waiting = 0

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._ids, self._offsets = _Part(self.folder / IDS), _Part(self.folder / OFFSETS)
        except OSError as error:
            raise _cannot_write(self.folder, error) from None
        self._end = 0
        self._offsets.write(np.zeros(1, "<i8"))
        return self

    def add(self, row: Row) -> None:
        """One more row, at the end."""
        self._waiting.append(np.asarray(row, dtype=np.int64))
        self._n_waiting += len(row) + 1  # empty rows count too, or a million could wait
        if self._n_waiting >= _FLUSH:
            self._flush()

    def add_text(self, text: str) -> None:
        """One more line, as its UTF-8 bytes."""
        self.add(np.frombuffer(text.encode(), np.uint8))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as full:
            raise _cannot_write(self.folder, full) from None
        finally:
            self._ids.discard()
            self._offsets.discard()

    def _flush(self) -> None:
        if not self._waiting:
            return
        flat = np.concatenate(self._waiting)  # (ids of these rows,)
        assert flat.size == 0 or (flat.min() >= 0 and flat.max() < self.vocab_size), (
            "an id outside the vocabulary"
        )
        ends = self._end + np.cumsum([len(row) for row in self._waiting])
        try:
            self._ids.write(flat.astype(self.dtype))
            self._offsets.write(ends.astype("<i8"))
        except OSError as error:
            raise _cannot_write(self.folder, error) from None
        self._end = int(ends[-1])
        self._waiting, self._n_waiting = [], 0

    def _finish(self) -> None:
        """Old header away, new files in place, new header last: at no moment does a header describe other files."""
        self._flush()
        rows = self._offsets.n_bytes // 8 - 1
        header = {
            "format": FORMAT,
            "dtype": self.dtype,
            "rows": rows,
            "ids": self._end,
            "dropped": self.dropped,
            "crc_ids": self._ids.crc,
            "crc_offsets": self._offsets.crc,
            "fingerprint": self.fingerprint,
        }
        (self.folder / HEADER).unlink(missing_ok=True)
        self._ids.put_in_place()
        self._offsets.put_in_place()
        part = _Part(self.folder / HEADER)
        try:
            part.write(_sealed(header))
            part.put_in_place()
        finally:
            part.discard()
        sync(self.folder)


def write_store(
    folder: str | Path, rows: Iterable[Row], vocab_size: int, fingerprint: Mapping[str, str]
) -> Store:
    """Stream rows to disk and open what was written; an older store in this folder is replaced."""
    with StoreWriter(folder, vocab_size, fingerprint) as writer:
        for row in rows:
            writer.add(row)
    return Store.open(folder)


def write_texts(
    folder: str | Path, texts: Iterable[str], fingerprint: Mapping[str, str]
) -> TextStore:
    """Stream lines to disk and open what was written."""
    with StoreWriter(folder, 256, fingerprint) as writer:
        for text in texts:
            writer.add_text(text)
    return TextStore.open(folder)


def reusable(folder: str | Path, fingerprint: Mapping[str, str]) -> Store | None:
    """The store of this folder if it is whole and was made from the same things; else None, and it is made anew."""
    try:
        store = Store.open(folder)
    except QkvError:
        return None
    return store if store.fingerprint == dict(fingerprint) else None


class _Part:
    """A file under a temporary name, with a running checksum, until it is put in place.

    A fresh file, never an overwritten one: whoever has the old one mapped keeps reading the old one.
    """

    def __init__(self, path: Path):
        self.path, self.temporary = path, path.with_name(f"{path.name}.part")
        self.temporary.unlink(missing_ok=True)  # what a killed writer left would stay for ever
        self.file: BinaryIO = self.temporary.open("wb")
        self.crc = self.n_bytes = 0

    def write(self, data: np.ndarray | bytes) -> None:
        raw = data if isinstance(data, bytes) else data.tobytes()
        self.file.write(raw)
        self.crc, self.n_bytes = zlib.crc32(raw, self.crc), self.n_bytes + len(raw)

    def put_in_place(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.temporary.replace(self.path)

    def discard(self) -> None:
        """Nothing to do once the file is in place."""
        with suppress(OSError):  # a full disk refuses the last bytes too; the file goes anyway
            self.file.close()
        self.temporary.unlink(missing_ok=True)


def _read_header(folder: Path) -> dict[str, Any]:
    """The header, if it is there, ours, and says of itself what it said when it was written."""
    try:
        raw = (folder / HEADER).read_bytes()
        header = json.loads(raw)
        whole = header["format"] == FORMAT and raw == _sealed(
            {k: v for k, v in header.items() if k != "check"}
        )
    except FileNotFoundError:
        raise _refusal(folder, _("no whole store: {header} is missing", header=HEADER)) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise _refusal(folder / HEADER, _("damaged"))
    return header


def _map(path: Path, dtype: str, count: int) -> np.ndarray:
    """A file as an array, if it has the size its header promises."""
    size, promised = (
        (path.stat().st_size if path.is_file() else 0),
        count * np.dtype(dtype).itemsize,
    )
    if size != promised:
        raise _refusal(
            path, _("damaged: {size:,} bytes instead of {promised:,}", size=size, promised=promised)
        )
    if count == 0:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r").view(
        np.ndarray
    )  # a plain view: slicing a memmap costs three times more


def _check(path: Path, values: np.ndarray, crc: int) -> None:
    found = 0
    for start in range(0, len(values), 1 << 22):
        found = zlib.crc32(values[start : start + (1 << 22)].data, found)
    if found != crc:
        raise _refusal(path, _("damaged: its bytes are not those that were written"))


def _sealed(header: Mapping[str, Any]) -> bytes:
    """The header as it stands in its file, with a checksum of itself at the end."""
    check = f"{zlib.crc32(json.dumps(header).encode()):08x}"
    return json.dumps({**header, "check": check}, indent=1).encode()


def _refusal(path: Path, wrong: str) -> QkvError:
    return QkvError(path, wrong, _("delete the folder, it is made anew from the text"))


def _cannot_write(folder: Path, error: OSError) -> QkvError:
    return QkvError(folder, _("cannot be written"), error.strerror or str(error))
