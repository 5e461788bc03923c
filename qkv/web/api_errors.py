"""API errors: an HTTP status and a message in English and Chinese. See docs/guides/inspect.md."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from qkv.messages import N_, both, current_language


class ApiError(Exception):
    """A message for the user in both languages, and its HTTP status."""

    def __init__(self, status: int, message: str, **values: Any):
        self.status, self.texts = status, both(message, **values)
        super().__init__(self.texts.en)

    def text(self) -> str:
        """The message in the language of the terminal, without its period."""
        return getattr(self.texts, current_language()).rstrip(".。")

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": self.texts._asdict()}


def not_found(name: str, known: Iterable[str] = ()) -> ApiError:
    """The error for an unknown name, with the closest known one."""
    if close := get_close_matches(name, list(known), 1):
        wrong = N_("'{name}' does not exist; did you mean '{close}'?")
        return ApiError(404, wrong, name=shortened(name), close=close[0])
    return ApiError(404, "'{name}' does not exist.", name=shortened(name))


def shortened(text: str) -> str:
    """The first 60 characters of a user's text."""
    return text if len(text) <= 60 else f"{text[:60]}…"
