"""Read text files (UTF-8, plain or gzip) as streams of lines, and write text files atomically.

See docs/explanation/tokenization.md.
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.files import atomic_path
from qkv.json_files import MAX_JSON_BYTES, check_regular, check_size
from qkv.messages import _

MAX_LINE_BYTES = MAX_JSON_BYTES  # a stream without newlines does not fill the memory
_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
# A surrogate encoded as three bytes: never valid UTF-8, and as long as U+FFFD in UTF-8.
_SURROGATE_BYTES = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]")


def read_lines(path: str | Path, errors: str | None = None) -> Iterator[str]:
    """Return the lines of a text file, without newlines.

    A missing, empty or binary file raises an error here, before the first line is read.

    Args:
        path: A file in UTF-8, plain or gzip.
        errors: "replace" replaces bytes that are not UTF-8 by U+FFFD; "strict" and None raise an
            error, which with "strict" suggests the option --errors replace.
    """
    return decode_lines(_open(Path(path)), str(path), errors)


def read_text(path: str | Path, limit: int = MAX_JSON_BYTES) -> str:
    """Read a whole small file, such as a recipe, with the same errors as read_lines.

    Args:
        path: A regular file; a FIFO or a device is refused before it is opened.
        limit: The largest size in bytes, after decompression.
    """
    check_regular(path, limit)
    with _open(Path(path)) as reader, _read_errors(path):
        raw = reader.read(limit + 1)
    check_size(path, len(raw), limit)
    memory: Any = io.BufferedReader(io.BytesIO(raw))
    return "\n".join(decode_lines(memory, str(path)))


def decode_lines(reader: io.BufferedReader, name: str, errors: str | None = None) -> Iterator[str]:
    """Return the lines of an open binary stream, such as standard input.

    Args:
        reader: The stream.
        name: Its name in error messages.
        errors: As for read_lines.
    """
    assert errors in (None, "strict", "replace"), errors
    lines = _decoded(reader, name, errors)
    next(lines)  # runs the checks and enters `with`: closing the generator closes the file
    return lines


def batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield lists of `size` texts, the last one shorter."""
    rest = iter(texts)
    while batch := list(islice(rest, size)):
        yield batch


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate, which UTF-8 cannot encode, by U+FFFD."""
    try:
        text.encode()  # ten times as fast as the regular expression, and nearly always sufficient
        return text
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)


def _open(path: Path) -> io.BufferedReader:
    """Open a file, decompressing it if its name or its first two bytes indicate gzip."""
    with _read_errors(path):
        raw = path.open("rb")
        compressed = path.suffix == ".gz" or raw.peek(2)[:2] == b"\x1f\x8b"
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if compressed else raw


@contextmanager
def _read_errors(name: str | Path) -> Iterator[None]:
    """Convert the errors of opening and reading a file to errors that name it."""
    try:
        yield
    except FileNotFoundError:
        raise QkvError(name, _("no such file"), _("check the path")) from None
    except IsADirectoryError:
        raise QkvError(name, _("a folder, not a file"), _("name the files in it")) from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise QkvError(name, _("damaged gzip file"), _("is the download complete?")) from None
    except OSError as error:
        raise QkvError(name, _("cannot be read"), error.strerror or str(error)) from None


def _decoded(reader: io.BufferedReader, name: str, errors: str | None) -> Iterator[str]:
    """Yield an empty string once the checks have passed, then the lines.

    Only "\\n" ends a line; other separators (U+2028, form feed) are characters of the text.
    """
    with reader, _read_errors(name):
        start = reader.peek(8192)
        if not start.removeprefix(_BOM):
            raise QkvError(name, _("empty file"), _("give a text file with at least one line"))
        if b"\0" in start:
            raise QkvError(name, _("a binary file, not text"), _("give plain text in UTF-8"))
        yield ""
        limited_lines = iter(lambda: reader.readline(MAX_LINE_BYTES + 1), b"")
        for number, line in enumerate(limited_lines, start=1):
            if len(line) > MAX_LINE_BYTES:
                where = _("{file}, line {line}", file=name, line=number)
                wrong = _("more than {limit:,} bytes", limit=MAX_LINE_BYTES)
                raise QkvError(where, wrong, _("split it into lines"))
            raw = line.removesuffix(b"\n").removesuffix(b"\r")
            bom_size = len(_BOM) if number == 1 and raw.startswith(_BOM) else 0
            try:
                yield raw[bom_size:].decode()
            except UnicodeDecodeError:
                where = _("{file}, line {line}", file=name, line=number)
                yield _decode_invalid(raw, where, errors)[bool(bom_size) :]


def _decode_invalid(raw: bytes, where: str, errors: str | None) -> str:
    """Decode a line with surrogates replaced by U+FFFD; other invalid bytes follow `errors`."""
    try:
        return _SURROGATE_BYTES.sub("\ufffd".encode(), raw).decode(errors=errors or "strict")
    except UnicodeDecodeError as error:
        right = _("convert the file to UTF-8")
        if errors:
            right = _("convert the file to UTF-8 or use --errors replace")
        where = _("{where}, byte {number}", where=where, number=error.start + 1)
        raise QkvError(
            where, _("0x{byte:02x} is not UTF-8", byte=raw[error.start]), right
        ) from None


def empty_text_error(where: str) -> QkvError:
    """Return the error for an empty text where an embedding is asked for."""
    return QkvError(where, _("empty text"), _("an empty text has no embedding; remove the line"))


def write_text(path: str | Path, text: str) -> None:
    """Write a file atomically: completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode())
