"""Lock of a run folder: only one training process uses it. See docs/guides/training.md."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkv.errors import QkvError
from qkv.files import refuse_without_locks
from qkv.messages import _, listed

LOCK = ".lock"
RUN_FILES = ("README.md", "train.yaml", "metrics.jsonl", "curves.png", "data")
_held: set[int] = set()  # file descriptors of the locks of this process


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock inside the block; the kernel releases it if the process dies."""
    refuse_without_locks()
    try:
        refuse_overwriting(folder)
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        wrong = _("cannot be used ({strerror})", strerror=error.strerror)
        raise QkvError(folder, wrong, _("choose another --out")) from error
    _held.add(descriptor)
    try:
        acquire(descriptor, folder)
        yield
    finally:
        release(descriptor)


def refuse_overwriting(folder: Path) -> None:
    """Raise an error if a run would overwrite files that no run has written."""
    if any((folder / name).exists() for name in (LOCK, "checkpoints", "model.json")):
        return
    if names := [name for name in RUN_FILES if (folder / name).exists()]:
        wrong = _("contains files that the run would overwrite ({names})", names=listed(names))
        raise QkvError(folder, wrong, _("choose another --out"))


def acquire(descriptor: int, folder: Path) -> None:
    """Take the lock and write the process id and host into the file."""
    import fcntl  # not on Windows: see refuse_without_locks

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        wrong = _("another training process uses this folder ({owner})", owner=owner)
        right = _("wait for it, stop it, or choose another --out")
        raise QkvError(folder, wrong, right) from error
    with suppress(OSError):  # on a full disk the lock holds without the owner's name
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def release(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        # The file stays: deleting it could break the lock of a process that has just opened it.
        os.close(descriptor)


def release_in_child() -> None:
    """A forked data worker may outlive the training process; it must not keep the folder locked."""
    for descriptor in tuple(_held):
        release(descriptor)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=release_in_child)
