"""Text files: read line by line, written whole.

In: a path (UTF-8, plain or gzip). Out: its lines as strings, one at a time, however large the file.
Told in docs/tokenizers.md, "Reading text".
"""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import atomic_path
from qkv.messages import _

_BOM = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
# A surrogate written as if it were a character: never part of valid UTF-8, and as long as U+FFFD's own three bytes.
_SURROGATE_BYTES = re.compile(b"\xed[\xa0-\xbf][\x80-\xbf]")


def read_lines(path: str | Path, errors: str | None = None) -> Iterator[str]:
    """The lines of a text file, without their ends; what is wrong with the file is said before the first line.

    `errors="replace"` turns bytes that are not UTF-8 into U+FFFD instead of stopping at them; "strict" stops, and so does
    None, for those who cannot choose and are not told to.
    """
    return lines_of(_open(Path(path)), str(path), errors)


def read_text(path: str | Path) -> str:
    """A small file whole, such as a recipe; what is wrong with it is told as of a large one."""
    return "\n".join(read_lines(path))


def lines_of(reader: io.BufferedReader, name: str, errors: str | None = None) -> Iterator[str]:
    """The lines of an open binary stream, such as standard input; `name` is what messages call it."""
    assert errors in (None, "strict", "replace"), errors
    lines = _decoded(reader, name, errors)
    next(lines)  # from here on the file is closed whenever the lines are let go, read or not
    return lines


def mend_surrogates(text: str) -> str:
    """Half a UTF-16 pair is no character and has no UTF-8 form; each becomes U+FFFD."""
    try:
        text.encode()  # ten times as fast as the search, and nearly always enough
        return text
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)


def _open(path: Path) -> io.BufferedReader:
    """The file's bytes, unpacked if its name or its first two bytes say gzip."""
    try:
        raw = path.open("rb")
        packed = path.suffix == ".gz" or raw.peek(2)[:2] == b"\x1f\x8b"
    except FileNotFoundError:
        raise QkvError(path, _("no such file"), _("check the path")) from None
    except IsADirectoryError:
        raise QkvError(path, _("a folder, not a file"), _("name the files in it")) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    return io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw


def _peek(reader: io.BufferedReader, name: str) -> bytes:
    """The first few kilobytes, which stay to be read again."""
    try:
        return reader.peek(8192)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise _damaged_gzip(name) from None
    except OSError as error:
        raise _unreadable(name, error) from None


def _check_start(start: bytes, name: str) -> None:
    if not start.removeprefix(_BOM):
        raise QkvError(name, _("empty file"), _("give a text file with at least one line"))
    if b"\0" in start:
        raise QkvError(name, _("a binary file, not text"), _("give plain text in UTF-8"))


def _decoded(reader: io.BufferedReader, name: str, errors: str | None) -> Iterator[str]:
    """Only "\\n" ends a line: other separators (U+2028, form feed) are characters of the text. First comes a word for nobody."""
    with reader:
        _check_start(_peek(reader, name), name)
        yield ""
        try:
            for number, line in enumerate(reader, start=1):
                raw = line.removesuffix(b"\n").removesuffix(b"\r")
                skipped = len(_BOM) if number == 1 and raw.startswith(_BOM) else 0
                try:
                    yield raw[skipped:].decode()
                except UnicodeDecodeError:
                    yield _mended(raw, _("{file}, line {line}", file=name, line=number), errors)[
                        bool(skipped) :
                    ]
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise _damaged_gzip(name) from None
        except OSError as error:
            raise _unreadable(name, error) from None


def _mended(raw: bytes, where: str, errors: str | None) -> str:
    """The line with surrogates as U+FFFD; other foreign bytes as well, or an error that names the first."""
    try:
        return _SURROGATE_BYTES.sub("\ufffd".encode(), raw).decode(errors=errors or "strict")
    except UnicodeDecodeError as error:
        raise QkvError(
            _("{where}, byte {start}", where=where, start=error.start + 1),
            _("0x{raw:02x} is not UTF-8", raw=raw[error.start]),
            _("convert the file to UTF-8") + (_(" or use --errors replace") if errors else ""),
        ) from None


def _unreadable(name: str | Path, error: OSError) -> QkvError:
    return QkvError(name, _("cannot be read"), error.strerror or str(error))


def _damaged_gzip(name: str) -> QkvError:
    return QkvError(name, _("damaged gzip file"), _("is the download complete?"))


def no_text(where: str) -> QkvError:
    return QkvError(
        where, _("no text in it"), _("an empty sentence has no vector; take the line out")
    )


def write_text(path: str | Path, text: str) -> None:
    """A whole new file or none."""
    with atomic_path(path) as unfinished:
        unfinished.write_bytes(text.encode())
