"""Standard streams and arguments of a command: what is wrong with them is reported in one line.

A closed stream, a full disk or a reader that has exited gives an exit code of
docs/reference/files.md, never a traceback.
"""

import io
import os
import sys
from typing import TextIO

from qkv.errors import QkvError
from qkv.messages import _

SHOWN_CHARACTERS = 40  # of an argument in a message


class OutputStream(io.FileIO):
    """Standard output or error as a file: what follows a failed write is discarded.

    Python would otherwise try to write the rest at exit, and print a traceback.
    """

    def write(self, data: "memoryview | bytes") -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            discard = os.open(os.devnull, os.O_WRONLY)
            os.dup2(discard, self.fileno())
            os.close(discard)
            if self.fileno() == 2:  # progress and messages: the command continues without them
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise
            wrong = _("cannot be written ({strerror})", strerror=error.strerror)
            right = _("redirect it to a file or a pipe")
            raise QkvError(_("standard output"), wrong, right) from None


def open_streams() -> None:
    """Open closed standard streams, and make the errors of the others errors of one line."""
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for _name in closed:
        # The lowest free descriptor, which is that of the stream: no other file may get it.
        os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 (open until the end)
    sys.stdout = _output_stream(sys.stdout, 1)
    sys.stderr = _output_stream(sys.stderr, 2)
    if "stdout" in closed:
        wrong = _("standard output is closed")
        raise QkvError("qkv", wrong, _("redirect it to a file or a pipe"))


def _output_stream(stream: TextIO | None, descriptor: int) -> TextIO:
    """The stream with the errors of OutputStream; escapes what its encoding does not have.

    A stream that is not of this descriptor, such as that of a test or a notebook, is returned.
    """
    buffer = getattr(stream, "buffer", None)
    if stream is not None and type(getattr(buffer, "raw", buffer)) is not io.FileIO:
        return stream
    raw = OutputStream(descriptor, "w", closefd=False)
    unbuffered = bool(getattr(stream, "write_through", False))  # python -u
    return io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=bool(getattr(stream, "line_buffering", False)),
        write_through=unbuffered,
    )


def check_utf8(arguments: list[str]) -> None:
    """Raise an error for an argument with bytes that are not UTF-8, which have no character."""
    for argument in arguments:
        displayed = argument.encode(errors="backslashreplace").decode()
        if displayed != argument:
            wrong = _(
                "the argument '{argument}' is not UTF-8", argument=displayed[:SHOWN_CHARACTERS]
            )
            raise QkvError("qkv", wrong, _("convert the text to UTF-8, or rename the file"))


def file_error(error: OSError) -> QkvError:
    """The error of one line for an error of the operating system."""
    wrong = _("cannot be used ({strerror})", strerror=error.strerror or str(error))
    return QkvError("qkv" if error.filename is None else error.filename, wrong, _("check the path"))
