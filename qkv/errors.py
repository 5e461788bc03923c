"""Errors that the user can fix, reported in one line: where, what is wrong, what would be right.

See docs/explanation/design-notes.md, "Errors".
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from qkv.messages import _, listed


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
        line = f"{self.where}: {wrong}" if self.where else wrong
        super().__init__(f"{line}; {right}" if right else line)


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
