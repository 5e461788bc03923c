"""What a person on the page is told when something cannot be done, in both languages at once.

In: a status and a sentence in English and Chinese. Out: the exception that the server answers with and the page shows.
Told in docs/explore.md, "Safety".
"""


class Problem(Exception):
    """A sentence for the person, and the HTTP status that goes with it."""

    def __init__(self, status: int, en: str, zh: str):
        super().__init__(en)
        self.status, self.en, self.zh = status, en, zh

    def as_json(self) -> dict[str, dict[str, str]]:
        return {"error": {"en": self.en, "zh": self.zh}}
