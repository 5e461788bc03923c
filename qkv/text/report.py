"""What a tokenizer does to a text, in numbers.

In: a tokenizer and texts. Out: tokens a word and a character, bytes a token, the share of unknown tokens and of texts
that come back unchanged. Told in docs/tokenizers.md, "Is it a good one?".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from qkv.text.tokenizer import Tokenizer


@dataclass
class Report:
    """Sums over all texts, and what follows from them."""

    texts: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0
    unchanged: int = 0

    def figures(self) -> dict[str, float]:
        """The ratios, by the name they have in tables and JSON."""
        return {
            "tokens_per_word": _ratio(self.tokens, self.words),
            "tokens_per_character": _ratio(self.tokens, self.characters),
            "bytes_per_token": _ratio(self.bytes, self.tokens),
            "unknown_rate": _ratio(self.unknown, self.tokens),
            "round_trip": _ratio(self.unchanged, self.texts),
        }


def report(tokenizer: Tokenizer, texts: Iterable[str]) -> Report:
    """The figures of a tokenizer on texts, which are read as a stream."""
    total, stream = Report(), iter(texts)
    while batch := list(islice(stream, 1000)):
        _add(total, tokenizer, batch)
    return total


def _add(total: Report, tokenizer: Tokenizer, texts: list[str]) -> None:
    rows = tokenizer.encode_batch(texts)
    total.texts += len(texts)
    total.words += sum(len(text.split()) for text in texts)
    total.characters += sum(map(len, texts))
    total.bytes += sum(len(text.encode(errors="replace")) for text in texts)
    total.tokens += sum(map(len, rows))
    total.unknown += (
        sum(row.count(tokenizer.unk_id) for row in rows) if tokenizer.unk_id is not None else 0
    )
    total.unchanged += sum(map(str.__eq__, tokenizer.decode_batch(rows), texts))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
