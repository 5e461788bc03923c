"""Query parameters, validated: numbers within limits, row ranges, edits.

See docs/guides/inspect.md.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from qkv.messages import Both, both
from qkv.web.api_errors import ApiError, shortened


@dataclass(frozen=True)
class Query:
    """Parameters by name; each is validated when it is read."""

    params: Mapping[str, str]

    def integer(self, name: str, default: int, minimum: int, maximum: int) -> int:
        text = self.params.get(name, str(default))
        if re.fullmatch(r"\d{1,9}", text, re.ASCII) and minimum <= int(text) <= maximum:
            return int(text)
        expected = both("an integer from {minimum} to {maximum}", minimum=minimum, maximum=maximum)
        raise invalid_parameter(name, text, expected)

    def number(self, name: str, default: float, minimum: float, maximum: float) -> float:
        text = self.params.get(name, str(default))
        with suppress(ValueError):
            if minimum <= float(text) <= maximum:
                return float(text)
        expected = both("a number from {minimum} to {maximum}", minimum=minimum, maximum=maximum)
        raise invalid_parameter(name, text, expected)

    def index(self) -> int | None:
        return self.integer("index", 0, 0, 100_000) if "index" in self.params else None

    def rows(self) -> slice:
        """rows=0:64; all rows by default."""
        text = self.params.get("rows")
        if text is None:
            return slice(None)
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
        if not match or int(match[1]) >= int(match[2]):
            raise invalid_parameter("rows", text, both("rows such as 0:64"))
        return slice(int(match[1]), int(match[2]))

    def edits(self) -> list[str]:
        """edits=head:decoder.0.attn.3,positions:decoder."""
        return [edit for edit in self.params.get("edits", "").split(",") if edit]


def invalid_parameter(name: str, text: str, expected: Both) -> ApiError:
    return ApiError(
        422,
        "{name} is '{text}'; it must be {expected}.",
        name=name,
        text=shortened(text),
        expected=expected,
    )
