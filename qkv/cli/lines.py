"""Batches of input lines: from an argument, a file, standard input or a terminal.

Shared by `qkv translate`, `qkv generate`, `qkv search` and `qkv embed`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

from qkv.messages import _
from qkv.text.lines import batches, decode_lines, read_lines, replace_surrogates


def lines(text: str | None, file: Path | None, size: int, hint: str) -> Iterator[list[str]]:
    """Input lines in batches of at most `size`; `hint` is printed if the input is a terminal."""
    if text is not None:
        yield [replace_surrogates(text)]
    elif file is not None:
        yield from batches(read_lines(file), size)
    else:
        yield from _typed_lines(hint) if sys.stdin.isatty() else _piped_lines(size)


def _typed_lines(hint: str) -> Iterator[list[str]]:
    """Lines typed at a terminal, until Ctrl-D; the prompt `> ` goes to stderr."""
    print(hint, file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            print(file=sys.stderr)
            return
        # "replace": deleting half of a multi-byte character in a terminal leaves invalid UTF-8
        yield [line.decode(errors="replace").removesuffix("\n")]


def _piped_lines(size: int) -> Iterator[list[str]]:
    """The lines that have arrived so far: slow input is not delayed, fast input fills batches."""
    queue: Queue[str | BaseException | None] = Queue(size)
    Thread(target=_read_into, args=(queue,), daemon=True).start()
    while True:
        items = [queue.get()]
        while len(items) < size and not queue.empty():
            items.append(queue.get())
        batch = [item for item in items if isinstance(item, str)]
        if batch:
            yield batch
        if isinstance(items[-1], BaseException):
            raise items[-1]
        if items[-1] is None:
            return


def _read_into(queue: "Queue[str | BaseException | None]") -> None:
    """Put the lines of standard input into the queue, then None."""
    try:
        for line in stdin_lines():
            queue.put(line)
        queue.put(None)
    except BaseException as error:  # raised again in the main thread
        queue.put(error)


def stdin_lines() -> Iterator[str]:
    """The lines of standard input, without newlines."""
    reader = open(0, "rb", closefd=False)  # noqa: SIM115 (decode_lines closes it)
    return decode_lines(reader, _("standard input"))
