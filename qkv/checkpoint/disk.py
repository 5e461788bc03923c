"""The changes to the disk that saving is made of, and the temporary folder it works in.

In: paths and contents. Out: folders and files changed one small step at a time, each step a function that a test can
make fail; told in docs/training.md, "Nothing is lost".
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import sync
from qkv.messages import _

Content = (
    bytes | Callable[[Path], None]
)  # what a file holds, or who writes it to the path it is given

SCRATCH = re.compile(
    r"\..+\.qkv-[0-9a-f]{8}\.tmp"
)  # only folders of this very form are ever swept away


def make_folder(path: Path) -> None:
    path.mkdir()


def fill(path: Path, content: Content) -> None:
    """A new file with this content."""
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)


def rename(old: Path, new: Path) -> None:
    old.replace(new)


def delete_file(path: Path) -> None:
    path.unlink()


def delete_folder(path: Path) -> None:
    path.rmdir()


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, gone afterwards."""
    with plain_errors(path), ExitStack() as at_the_end:
        path = path.resolve()  # "." has neither a name nor anything beside it
        make_parents(path.parent)
        sweep(path.parent)
        folder, lock = claim(path)
        at_the_end.callback(os.close, lock)
        at_the_end.callback(try_to_delete, folder)
        yield folder


def make_parents(folder: Path) -> None:
    if not folder.exists():
        make_parents(folder.parent)
        make_folder(folder)
        sync(folder.parent)


def claim(path: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that locks it: the lock dies with its process, so leftovers are known as such."""
    while True:
        folder = scratch_name(path)
        make_folder(folder)
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: then nobody can sweep either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():  # another process may have swept it between its birth and its lock
                return folder, lock
            os.close(lock)


def scratch_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.qkv-{secrets.token_hex(4)}.tmp")


def put(folder: Path, path: Path) -> None:
    """`folder` becomes `path`, which is empty or not there; the one we stand in stays, or its shell would stand in a deleted one."""
    if path.exists() and path.samefile("."):
        move_all(folder, path)
    else:
        rename(folder, path)


def move_all(folder: Path, path: Path) -> None:
    """All that `folder` holds moves to the empty `path`, or goes back."""
    try:
        for child in sorted(folder.iterdir()):
            rename(child, path / child.name)
        sync(path)
    except OSError:
        for child in sorted(path.iterdir()):
            rename(child, folder / child.name)
        raise


def sweep(parent: Path) -> None:
    """Temporary folders whose process is dead (nobody holds their lock) are deleted."""
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
    """Where a failure may wait: what stays is swept at the next save."""
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
def plain_errors(path: Path) -> Iterator[None]:
    """A disk that refuses becomes the one line a person reads."""
    try:
        yield
    except OSError as error:
        raise not_saved(path, error) from error


def not_saved(path: Path, error: OSError) -> QkvError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        wrong = _("not saved, the disk is full")
        right = _("free some space and try again")
    else:
        reason = error.strerror or str(error)
        wrong = _("not saved ({reason})", reason=reason)
        right = _("check the folder and its permissions")
    earlier = _("what was saved before is whole")
    return QkvError(path, wrong, _("{right}, {earlier}", right=right, earlier=earlier))
