"""What a person can mend, said in one line.

In: where it went wrong, what is wrong, what would be right. Out: an exception whose text is that line.
Told in docs/design-notes.md, "Errors".
"""

import difflib
from collections.abc import Iterable

from qkv.language import say


class QkvError(Exception):
    """A mistake a person can mend: the command line prints its one line and leaves with 2.

    >>> str(QkvError("a.zh", "no such file", "check the path"))
    'a.zh: no such file; check the path'
    """

    def __init__(self, where: object, wrong: str, right: str = ""):
        self.where, self.wrong, self.right = str(where), wrong, right
        line = f"{self.where}: {wrong}" if self.where else wrong
        super().__init__(f"{line}; {right}" if right else line)


def near_miss(name: str, known: Iterable[str]) -> str:
    """What the person probably meant, as a question; else all there is to choose from.

    >>> near_miss("warmup_step", ["warmup_steps", "lr"])
    "did you mean 'warmup_steps'?"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return say(f"did you mean '{close[0]}'?", f"是不是想写 '{close[0]}'？")
    return say(f"choose from {', '.join(known)}", f"可选：{'、'.join(known)}")
