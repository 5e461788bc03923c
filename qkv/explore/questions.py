"""The parameters of a question, read with care.

In: what stands after the question mark. Out: numbers within their limits, or one sentence that says what is wrong.
Told in docs/explore.md, "Safety".
"""

import math
import re
from collections.abc import Mapping

from qkv.explore.edits import shortened
from qkv.explore.problem import Problem


class Query:
    """Parameters by name; each is checked when it is asked for."""

    def __init__(self, given: Mapping[str, str]):
        self.given = given

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number within its limits."""
        text = self.given.get(name, str(default))
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise wrong(name, text, f"a whole number from {least} to {most}", f"{least} 到 {most} 的整数")
        return int(text)

    def real(self, name: str, default: float, least: float, most: float) -> float:
        """A number within its limits."""
        text = self.given.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise wrong(name, text, f"a number from {least} to {most}", f"{least} 到 {most} 的数")
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
            raise wrong("rows", text, "rows such as 0:64", "形如 0:64 的行")
        return slice(int(found[1]), int(found[2]))

    def edits(self) -> list[str]:
        """edits=head:decoder.0.attn.3,positions:decoder."""
        return [one for one in self.given.get("edits", "").split(",") if one]


def wrong(name: str, text: str, en: str, zh: str) -> Problem:
    return Problem(422, f"{name} is '{shortened(text)}'; it must be {en}.", f"{name} 为“{shortened(text)}”；应为{zh}。")


def no_such(name: str) -> Problem:
    return Problem(404, f"There is nothing under '{shortened(name)}'.", f"没有“{shortened(name)}”。")
