"""The contract of every reader: a valid object, or a QkvError of one line of bounded length."""

import os
import resource
import stat
import traceback
from pathlib import Path
from unicodedata import category

from fuzz_readers import Target

from qkv.errors import QkvError

MAX_CHARACTERS = 1_000  # of an error, beside the path of the file
MAX_BYTES = 2 << 30  # of address space, beside that before the first input
ADDRESS_SPACE = resource.RLIMIT_AS
CONTROLS = ("Cc", "Cs", "Zl", "Zp")  # Unicode categories: control, surrogate, separators


def violation_of(target: Target, content: bytes) -> str | None:
    """Let the reader read this content; what violates the contract, None if nothing does."""
    target.path.write_bytes(content)
    written = size_of_stderr()
    try:
        target.read()
    except QkvError as error:
        if wrong := wrong_line(str(error), len(str(target.path))):
            return wrong
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust derives from BaseException
        return f"{type(error).__name__} in {place_of(error)}: {error!s:.300}"
    if size_of_stderr() > written:
        return f"written to stderr: {os.pread(2, 300, written).decode(errors='replace')}"
    return None


def limit_memory() -> None:
    """Limit the address space of this process: a larger allocation raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit, hard = pages * resource.getpagesize() + MAX_BYTES, resource.getrlimit(ADDRESS_SPACE)[1]
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(ADDRESS_SPACE, (limit, limit))


def size_of_stderr() -> int:
    """The bytes in the file to which stderr is redirected; 0 if it is no file."""
    found = os.fstat(2)
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def wrong_line(text: str, path_length: int = 0) -> str | None:
    """What is wrong with the text of an error."""
    if len(text.splitlines()) != 1:
        return f"{len(text.splitlines())} lines: {text!r:.300}"
    if len(text) > MAX_CHARACTERS + path_length:
        return f"an error of {len(text)} characters: {text:.300}"
    if controls := [character for character in text if category(character) in CONTROLS]:
        return f"control characters {controls}: {text!r:.300}"
    return None


def place_of(error: BaseException) -> str:
    """The innermost line in qkv/ that raised an exception."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/qkv/" in frame.filename
    ]
    if not frames:
        return "no file of qkv"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
