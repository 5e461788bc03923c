"""Write a file atomically: whoever reads it finds the old one or the whole new one. (Durable saves: checkpoint/durable.py.)

In: a path. Out: a temporary path beside it to write to, renamed at the end; or one line that says why not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Write to the path that is given; it becomes `path` when the block ends, and is deleted if an error ends it."""
    path = Path(path)
    refuse_folder(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
        unfinished.replace(path)
    except OSError as error:
        raise QkvError(
            path,
            _("cannot be written ({strerror})", strerror=error.strerror),
            _("check the folder and the free space"),
        ) from None
    finally:
        with suppress(OSError):  # it is there only if something went wrong
            unfinished.unlink()


def sync(path: Path) -> None:
    """What the file or folder holds reaches the disk before this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_folder(path: Path) -> None:
    """A file cannot be written where a folder is."""
    if path.is_dir():
        raise QkvError(path, _("a folder, not a file"), _("name a file"))


def refuse_unwritable(path: Path) -> None:
    """Before long work whose result goes there; missing parent folders are made when it is written."""
    refuse_folder(path)
    above = next(parent for parent in path.resolve().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise QkvError(path, _("cannot be written"), _("choose another place"))
