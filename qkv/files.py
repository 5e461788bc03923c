"""Outputs: every file that a command writes is checked and written by these functions.

A file is written atomically: to a temporary file beside it, which is renamed at the end, so that a
reader finds either the old file or the complete new one. Devices, FIFOs and the file that is
standard output are written to, never replaced. Durable saves: checkpoint/durable.py.
"""

import os
import platform
import secrets
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from qkv.errors import QkvError
from qkv.messages import _, listed

UNFINISHED = ".unfinished"  # suffix of temporary files
PICTURES, VECTOR_FILES = (".png",), (".npy", ".jsonl")  # suffixes of outputs
# The files of a model folder that are read; others in it, such as translations, can be written.
MODEL_FILES = (".json", ".safetensors", ".bin", ".model", ".tiktoken", "vocab.txt", "merges.txt")


# ── Writing ───────────────────────────────────────────────────────────────────────────────────
@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path to write to: renamed to `path` at the end, deleted after an error.

    A link is kept and its target replaced. A device or a FIFO gets the content at the end.
    """
    path = Path(path)
    with write_errors(path):
        if is_stream(path):
            with TemporaryDirectory() as folder:
                yield Path(folder) / "output"
                _copy(Path(folder) / "output", path)
            return
        refuse_folder(path)
        path = Path(os.path.realpath(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{secrets.token_hex(8)}{UNFINISHED}")
        try:
            yield unfinished
            unfinished.replace(path)
        finally:
            with suppress(OSError):  # it exists only after an error
                unfinished.unlink()


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Report an error of the operating system inside the block as one of this output."""
    try:
        yield
    except BrokenPipeError:  # the reader of a FIFO has exited
        raise
    except OSError as error:
        raise QkvError(
            path,
            _("cannot be written ({strerror})", strerror=error.strerror),
            _("check the folder and the free space"),
        ) from None


def is_stream(path: Path) -> bool:
    """Whether `path` is a device, a FIFO or a socket, or the file that is standard output."""
    found = _status(path)
    if found is None or stat.S_ISDIR(found.st_mode):
        return False
    return not stat.S_ISREG(found.st_mode) or _standard_stream(found) is not None


def _copy(content: Path, path: Path) -> None:
    """Write the content to a stream."""
    found = _status(path)
    standard = None if found is None else _standard_stream(found)
    sys.stdout.flush()  # it may be this stream
    with (
        content.open("rb") as file,
        open(path if standard is None else standard, "wb", closefd=standard is None) as output,
    ):
        shutil.copyfileobj(file, output)


def _standard_stream(found: os.stat_result) -> int | None:
    """The descriptor of standard output or error, if it is this file."""
    for descriptor in (1, 2):
        with suppress(OSError):  # it is closed
            if os.path.samestat(os.fstat(descriptor), found):
                return descriptor
    return None


def sync(path: Path) -> None:
    """Flush a file or folder to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ── Checks before long work ───────────────────────────────────────────────────────────────────
def check_output(
    path: Path, inputs: Iterable[Path | None] = (), suffixes: Sequence[str] = ()
) -> None:
    """Raise an error, before long work, if a file at `path` cannot or must not be written.

    Args:
        path: The file; a device or FIFO may have any name.
        inputs: The files and model folders that the command reads: they are not overwritten.
        suffixes: The suffixes that can be written; empty: any.
    """
    with write_errors(path):
        refuse_folder(path)
        for given in inputs:
            if given is not None and _is_input(path, given):
                raise QkvError(path, _("an input of this command"), _("choose another path"))
        if suffixes:
            check_suffix(path, suffixes)
        refuse_unwritable(path)


def check_output_folder(path: Path, is_own: bool) -> None:
    """Raise an error, before long work, if files cannot or must not be written into a folder.

    Args:
        path: The folder; it may be missing.
        is_own: Whether an earlier command of this kind has written it: then it may have files.
    """
    with write_errors(path):
        found = _status(path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise QkvError(path, _("a file, not a folder"), _("give the path of a folder"))
        names = sorted(child.name for child in path.iterdir()) if found is not None else []
        other = next((name for name in names if not name.endswith(UNFINISHED)), None)
        if other is not None and not is_own:
            wrong = _("contains other files, such as {name}", name=other)
            raise QkvError(path, wrong, _("choose another folder"))
        refuse_unwritable(path)


def check_suffix(path: Path, suffixes: Sequence[str]) -> None:
    """Raise an error if a file name has another suffix; a stream may have any name."""
    if path.suffix.lower() not in suffixes and not is_stream(path):
        wrong = _("unknown file type '{suffix}'", suffix=path.suffix)
        raise QkvError(path, wrong, _("use {suffixes}", suffixes=listed(suffixes)))


def refuse_folder(path: Path) -> None:
    """Raise an error if `path` is a folder."""
    found = _status(path)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise QkvError(path, _("a folder, not a file"), _("give the path of a file"))


def refuse_unwritable(path: Path) -> None:
    """Raise an error if `path` cannot be created or replaced; an existing folder: written into."""
    found, target = _status(path), Path(os.path.realpath(path))
    existing = next(parent for parent in target.parents if _status(parent) is not None)
    for part in target.relative_to(existing).parts:
        _status(existing / part)  # fails if the name is too long
    is_changed = found is not None and not stat.S_ISREG(found.st_mode)  # itself, not its folder
    writable = existing.is_dir() and (is_changed or os.access(existing, os.W_OK))
    if not writable or (found is not None and not os.access(path, os.W_OK)):
        raise QkvError(path, _("cannot be written"), _("choose another path"))


def refuse_without_locks() -> None:
    """Raise an error where the operating system has no POSIX file locks, before files are made."""
    if find_spec("fcntl") is None:
        wrong = _("{system} has no POSIX file locks (fcntl)", system=platform.system())
        raise QkvError("qkv", wrong, _("use Linux, on Windows with WSL"))


def _is_input(path: Path, given: Path) -> bool:
    """Whether writing `path` would change an input: a regular file, or a file of a model folder."""
    output, read = _status(path), _status(given)
    if output is None or read is None or not stat.S_ISREG(output.st_mode):
        return False
    if not stat.S_ISDIR(read.st_mode):
        return os.path.samestat(output, read)
    model_files = (child for child in given.iterdir() if child.name.endswith(MODEL_FILES))
    return any(_is_input(path, child) for child in model_files if not child.is_dir())


def _status(path: Path) -> os.stat_result | None:
    """The status of a file; None if there is none."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # a NUL, or a surrogate that is no byte
        raise QkvError(path, _("not a file name"), _("choose another path")) from None
