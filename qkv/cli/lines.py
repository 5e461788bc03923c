"""Lines to work on: a text, a file, standard input or a person at the keyboard.

In: what the command line gave. Out: lines, some at a time, as they come. Shared by `qkv translate` and `qkv generate`.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from queue import Queue
from threading import Thread

from qkv.messages import _


def lines(text: str | None, file: Path | None, size: int, invitation: str) -> Iterator[list[str]]:
    """The lines to work on, at most `size` at a time; a person at the keyboard is asked with `invitation`."""
    from qkv.text.lines import mend_surrogates, read_lines

    if text is not None:
        yield [mend_surrogates(text)]
    elif file is not None:
        rest = read_lines(file)
        while some := list(islice(rest, size)):
            yield some
    else:
        yield from _typed(invitation) if sys.stdin.isatty() else _arriving(size)


def _typed(invitation: str) -> Iterator[list[str]]:
    """What a person types, until Ctrl-D; the prompt is no result, so it goes to stderr."""
    print(invitation, file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            print(file=sys.stderr)
            return
        yield [
            line.decode(errors="replace").removesuffix("\n")
        ]  # half a character, as a slip of the fingers leaves it


def _arriving(size: int) -> Iterator[list[str]]:
    """All lines that have come in by now: a program that waits for each answer gets it, a fast one gets full batches."""
    queue: Queue[str | BaseException | None] = Queue(size)
    Thread(target=_read_into, args=(queue,), daemon=True).start()
    while True:
        some = [queue.get()]
        while len(some) < size and not queue.empty():
            some.append(queue.get())
        found = [line for line in some if isinstance(line, str)]
        if found:
            yield found
        if isinstance(some[-1], BaseException):
            raise some[-1]
        if some[-1] is None:
            return


def _read_into(queue: "Queue[str | BaseException | None]") -> None:
    """Standard input, line by line; None is its end."""
    from qkv.text.lines import lines_of

    try:
        reader = open(0, "rb", closefd=False)  # noqa: SIM115 (lines_of closes it)
        for line in lines_of(reader, _("standard input")):
            queue.put(line)
        queue.put(None)
    except BaseException as error:  # whatever it is, nobody else can tell of it
        queue.put(error)
