"""Write a file atomically: to a temporary file beside it, which is renamed at the end.

A reader finds either the old file or the complete new one. Durable saves: checkpoint/durable.py.
"""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to: renamed to `path` at the end, deleted after an error."""
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
        with suppress(OSError):  # it exists only after an error
            unfinished.unlink()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_without_locks() -> None:
    """Raise an error where the operating system has no POSIX file locks, before files are made."""
    if find_spec("fcntl") is None:
        wrong = _("{system} has no POSIX file locks (fcntl)", system=platform.system())
        raise QkvError("qkv", wrong, _("use Linux, on Windows with WSL"))


def refuse_folder(path: Path) -> None:
    """Raise an error if `path` is a folder."""
    if path.is_dir():
        raise QkvError(path, _("a folder, not a file"), _("give the path of a file"))


def refuse_unwritable(path: Path) -> None:
    """Raise an error, before long work, if a file at `path` cannot be created later."""
    refuse_folder(path)
    existing = next(parent for parent in path.resolve().parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise QkvError(path, _("cannot be written"), _("choose another path"))
