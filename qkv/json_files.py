"""Read JSON files from outside: regular files of bounded size, depth and encoding.

Every error is one line that names the file. See docs/explanation/design-notes.md, "Errors".
"""

import json
import stat
from pathlib import Path
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _

MAX_JSON_BYTES = 128 << 20  # the largest published tokenizer.json has 35 MB
MAX_JSON_DEPTH = 100  # configurations and tokenizers have less than 10 levels


def read_json(path: str | Path, limit: int = MAX_JSON_BYTES) -> Any:
    """Read a JSON file.

    Args:
        path: A regular file in UTF-8; a FIFO or a device is refused before it is opened.
        limit: The largest size in bytes.
    """
    raw = read_regular(path, limit)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _("{where}, byte {number}", where=path, number=error.start + 1)
        wrong = _("0x{byte:02x} is not UTF-8", byte=raw[error.start])
        raise QkvError(where, wrong, _("convert the file to UTF-8")) from None
    return parse_json(text, path)


def read_regular(path: str | Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    check_regular(path, limit)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise QkvError(path, _("cannot be read"), error.strerror or str(error)) from None
    check_size(path, len(raw), limit)
    return raw


def parse_json(text: str, where: object) -> Any:
    """Parse JSON of at most MAX_JSON_DEPTH levels; `where` names it in errors."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        wrong = _(
            "damaged JSON (line {line}, column {column})", line=error.lineno, column=error.colno
        )
        raise QkvError(where, wrong, _("is the download complete?")) from None
    except ValueError:  # Python's limit for the digits of an integer
        raise QkvError(where, _("a number with too many digits"), _("write it shorter")) from None
    except RecursionError:
        raise _too_deep(where) from None
    level = [content]
    for _depth in range(MAX_JSON_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return content
    raise _too_deep(where)


def check_regular(path: str | Path, limit: int | None = None) -> None:
    """Raise an error unless `path` is a regular file of at most `limit` bytes, or a link to one.

    A FIFO or a device would otherwise wait for a writer, or have no end.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise QkvError(path, _("no such file"), _("check the path")) from None
    except (OSError, ValueError) as error:
        raise QkvError(path, _("cannot be read"), str(error)) from None
    if stat.S_ISDIR(found.st_mode):
        raise QkvError(path, _("a folder, not a file"), _("give the path of a file"))
    if not stat.S_ISREG(found.st_mode):
        raise QkvError(path, _("not a regular file"), _("give the path of a file"))
    check_size(path, found.st_size, limit)


def check_size(path: str | Path, size: int, limit: int | None) -> None:
    """Raise an error if a file has more than `limit` bytes."""
    if limit is not None and size > limit:
        wrong = _("more than {limit:,} bytes", limit=limit)
        raise QkvError(path, wrong, _("is it the right file?"))


def _children(node: Any) -> list[Any]:
    """Return the lists and objects inside a list or an object."""
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [value for value in values if isinstance(value, dict | list)]


def _too_deep(where: object) -> QkvError:
    wrong = _("JSON nested more than {depth} levels deep", depth=MAX_JSON_DEPTH)
    return QkvError(where, wrong, _("is it the right file?"))
