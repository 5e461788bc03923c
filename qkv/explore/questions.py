"""The parameters of a question, read with care.

In: what stands after the question mark. Out: numbers within their limits, or one sentence that says what is wrong.
Told in docs/explore.md, "Safety".
"""

import math
import re
from collections.abc import Mapping

from qkv.explore.edits import shortened
from qkv.explore.problem import Problem
from qkv.messages import Both, both


class Query:
    """Parameters by name; each is checked when it is asked for."""

    def __init__(self, given: Mapping[str, str]):
        self.given = given

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within its limits."""
        text = self.given.get(name, str(default))
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise wrong(
                name, text, both("a whole number from {least} to {most}", least=least, most=most)
            )
        return int(text)

    def real(self, name: str, default: float, least: float, most: float) -> float:
        """A number within its limits."""
        text = self.given.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise wrong(name, text, both("a number from {least} to {most}", least=least, most=most))
        return value

    def index(self) -> int | None:
        return self.whole("index", 0, 0, 100_000) if "index" in self.given else None

    def rows(self) -> slice | None:
        """rows=0:64."""
        text = self.given.get("rows")
        if text is None:
            return None
        found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
        if not found or int(found[1]) >= int(found[2]):
            raise wrong("rows", text, both("rows such as 0:64"))
        return slice(int(found[1]), int(found[2]))

    def edits(self) -> list[str]:
        """edits=head:decoder.0.attn.3,positions:decoder."""
        return [one for one in self.given.get("edits", "").split(",") if one]


def wrong(name: str, text: str, right: Both) -> Problem:
    return Problem(
        422, "{name} is '{text}'; it must be {right}.", name=name, text=shortened(text), right=right
    )


def no_such(name: str) -> Problem:
    return Problem(404, "There is nothing under '{name}'.", name=shortened(name))
