"""What a person on the page is told when something cannot be done, in both languages at once.

In: a status and a sentence in English and Chinese. Out: the exception that the server answers with and the page shows.
Told in docs/explore.md, "Safety".
"""

from typing import Any

from qkv.messages import both, current_language


class Problem(Exception):
    """A sentence for the person, and the HTTP status that goes with it."""

    def __init__(self, status: int, message: str, **values: Any):
        self.status, self.texts = status, both(message, **values)
        super().__init__(self.texts.en)

    def text(self) -> str:
        """The sentence in the language of the terminal, without its period."""
        return getattr(self.texts, current_language()).rstrip(".。")

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": self.texts._asdict()}
