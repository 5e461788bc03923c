"""API errors: an HTTP status and a message in English and Chinese. See docs/guides/inspect.md."""

from typing import Any

from qkv.messages import both, current_language


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


def not_found(name: str) -> ApiError:
    return ApiError(404, "'{name}' does not exist.", name=shortened(name))


def shortened(text: str) -> str:
    """The first 60 characters of a user's text."""
    return text if len(text) <= 60 else f"{text[:60]}…"
