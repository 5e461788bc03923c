"""Primitive file operations of a save, and its temporary folder.

Every change to the disk is one small function, which a test can make fail.
See docs/explanation/training.md, "Checkpoints".
"""

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import refuse_unwritable, refuse_without_locks, write_errors
from qkv.files import sync as sync
from qkv.messages import _

Content = bytes | Callable[[Path], None]  # the bytes of a file, or a function that writes them

Files = dict[str, Content]  # by name

SCRATCH = re.compile(r"\..+\.qkv-[0-9a-f]{8}\.tmp")  # only such folders are deleted as leftovers


# A test can replace each of these by one that fails.
make_folder, rename, delete_file, delete_folder = Path.mkdir, Path.replace, Path.unlink, Path.rmdir


def fill(path: Path, content: Content) -> None:
    """Create a file with this content."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)


def fill_folder(folder: Path, files: Mapping[str, Content]) -> None:
    """Create all files; a name may contain one folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        fill(folder / name, content)


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """An empty temporary folder beside `path`, deleted at the end."""
    refuse_without_locks()
    with disk_errors(path), ExitStack() as cleanup:
        path = path.resolve()  # "." has neither a name nor siblings
        make_parents(path.parent)
        delete_leftovers(path.parent)
        folder, lock = create_locked(path)
        cleanup.callback(os.close, lock)
        cleanup.callback(try_to_delete, folder)
        yield folder


def make_parents(folder: Path) -> None:
    if not folder.exists():
        make_parents(folder.parent)
        make_folder(folder)
        sync(folder.parent)


def create_locked(path: Path) -> tuple[Path, int]:
    """A new temporary folder and the descriptor that locks it.

    The system releases the lock when the process ends, so an unlocked folder is a leftover.
    """
    import fcntl  # not on Windows: see refuse_without_locks

    while True:
        folder = scratch_path(path)
        make_folder(folder)
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # without file locks, delete_leftovers deletes nothing either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # another process may have deleted it before it was locked
                return folder, lock
            os.close(lock)


def scratch_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.qkv-{secrets.token_hex(4)}.tmp")


def move_folder(folder: Path, path: Path) -> None:
    """Rename `folder` to `path`, which is empty or missing.

    The current directory is filled instead of replaced: the user's shell would otherwise be in a
    deleted folder.
    """
    if path.exists() and path.samefile("."):
        move_all(folder, path)
    else:
        rename(folder, path)


def move_all(folder: Path, path: Path) -> None:
    """Move the contents of `folder` to the empty `path`, or move all of them back."""
    try:
        for child in sorted(folder.iterdir()):
            rename(child, path / child.name)
        sync(path)
    except OSError:
        for child in sorted(path.iterdir()):
            rename(child, folder / child.name)
        raise


def delete_leftovers(parent: Path) -> None:
    """Delete temporary folders of processes that have ended (their lock is free)."""
    import fcntl

    for leftover in parent.iterdir():
        if not SCRATCH.fullmatch(leftover.name):
            continue
        with suppress(OSError):
            lock = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete(leftover)
            finally:
                os.close(lock)


def try_to_delete(folder: Path) -> None:
    """Delete a folder; what cannot be deleted now is deleted by the next save."""
    with suppress(OSError):
        delete(folder)


def delete(folder: Path) -> None:
    for child in sorted(folder.iterdir()) if folder.exists() else ():
        if child.is_dir() and not child.is_symlink():
            delete(child)
        else:
            delete_file(child)
    if folder.exists():
        delete_folder(folder)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a QkvError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            wrong = _("not saved, the disk is full")
            right = _("free some space and try again (the previous version is intact)")
        else:
            wrong = _("not saved ({reason})", reason=error.strerror or str(error))
            right = _("check the folder and its permissions (the previous version is intact)")
        raise QkvError(path, wrong, right) from error


def refuse_occupied(path: Path) -> None:
    """Raise an error, before long work, unless `path` can be created, or is an empty folder."""
    with write_errors(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise QkvError(path, _("already exists"), _("choose another --out"))
        refuse_unwritable(path)


def refuse_not_installed(name: str) -> None:
    if find_spec(name) is None:
        raise QkvError(name, _("is not installed"), "pip install 'qkv[convert]'")


def refuse_missing_folder(path: Path) -> None:
    if not path.is_dir():
        raise QkvError(path, _("no such folder"), _("check the path"))
