"""Errors that the user can fix, reported in one line: where, what is wrong, what would be right.

See docs/explanation/design-notes.md, "Errors".
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qkv.messages import _, listed

__all__ = ["QkvError"]

# Characters that end a line, control a terminal or cannot be encoded; a file may contain them.
CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
LONG_NAME = re.compile(r"[!-~]{400,}")  # cut in the middle: the start and the end identify it
MAX_WHERE, MAX_WRONG, MAX_RIGHT = 500, 600, 350  # characters of the parts of a line


class QkvError(Exception):
    """An error the user can fix: the command line prints its line and exits with code 2.

    >>> str(QkvError("a.zh", "no such file", "check the path"))
    'a.zh: no such file; check the path'

    Attributes:
        where, wrong, right: The parts of the line.
    """

    def __init__(self, where: object, wrong: str, right: str = ""):
        """Make the error of one line.

        Args:
            where: The file, argument or option.
            wrong: What is wrong, with the value.
            right: What would be right.
        """
        self.where, self.wrong, self.right = str(where), wrong, right
        where = shortened(self.where, MAX_WHERE)
        wrong, right = shortened(wrong, MAX_WRONG), shortened(right, MAX_RIGHT)
        line = f"{where}: {wrong}" if where else wrong
        super().__init__(escape_controls(f"{line}; {right}" if right else line))


def escape_controls(text: str) -> str:
    """The text on one line: control characters and lone surrogates are escaped.

    >>> print(escape_controls("a\\nb"))
    a\\nb
    """
    return CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shortened(text: str, size: int) -> str:
    """The text with long names cut, or its first and last characters if there are more than `size`.

    >>> shortened("0123456789", 7)
    '012 … 9'
    """
    text, last = LONG_NAME.sub(lambda name: f"{name[0][:100]}...{name[0][-100:]}", text), size // 5
    return text if len(text) <= size else f"{text[: size - last - 3]} … {text[-last:]}"


def near_miss(name: str, known: Iterable[str]) -> str:
    """The closest known name as a question, or the list of all known names.

    >>> near_miss("warmup_step", ["warmup_steps", "lr"])
    "did you mean 'warmup_steps'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return _("did you mean '{close}'?", close=close[0])
    return _("choose from {known}", known=listed(known, None))


def expected_value(error: Mapping[str, Any]) -> str:
    """What pydantic would have accepted, in the user's language (pydantic has only English)."""
    kind = error["type"].partition("_")[0]
    if kind == "literal":
        return near_miss(str(error["input"]), re.findall(r"'([^']+)'", error["ctx"]["expected"]))
    known = {
        "int": _("use a whole number"),
        "float": _("use a number"),
        "bool": _("use true or false"),
        "tuple": _("use a list"),
        "dataclass": _("use an object"),
        "string": _("use text, in quotes if it looks like something else"),
    }
    return known.get(kind) or str(error["msg"])
