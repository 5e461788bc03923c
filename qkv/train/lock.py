"""Two trainers never share a folder.

In: the folder of a run. Out: it is ours until we leave, or one line that says whose it is.
Told in docs/training.md, "Nothing is lost".
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _

LOCK = ".lock"
_held: set[int] = set()  # descriptors of the locks of this process


@contextmanager
def locked(run_folder: str | Path) -> Iterator[None]:
    """The run folder belongs to this process inside the block; the kernel frees it if the process dies."""
    folder = Path(run_folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise QkvError(
            folder,
            _("cannot be used ({strerror})", strerror=error.strerror),
            _("choose another --out"),
        ) from error
    _held.add(descriptor)
    try:
        take(descriptor, folder)
        yield
    finally:
        release(descriptor)


def take(descriptor: int, folder: Path) -> None:
    """The lock, with our name written inside for those who come later."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        wrong = _("another training runs here ({owner})", owner=owner)
        right = _("wait for it, stop it, or choose another --out")
        raise QkvError(folder, wrong, right) from error
    with suppress(OSError):  # on a full disk the lock holds all the same, only without a name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def release(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(
            descriptor
        )  # the file stays: deleting it could take the lock from one who has just opened it


def forget_in_child() -> None:
    """A forked data worker may outlive its trainer, and must not keep the folder locked then."""
    for descriptor in tuple(_held):
        release(descriptor)


os.register_at_fork(after_in_child=forget_in_child)
