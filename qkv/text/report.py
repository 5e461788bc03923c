"""Tokenizer statistics: tokens per word and character, bytes per token, unknown rate, round trip.

See docs/explanation/tokenization.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.text.lines import batches
from qkv.text.tokenizer import Tokenizer


@dataclass
class TokenizerReport:
    """Counts summed over all texts."""

    texts: int = 0
    words: int = 0
    characters: int = 0
    bytes: int = 0
    tokens: int = 0
    unknown: int = 0
    unchanged: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the ratios, by their names in tables and JSON."""
        ratios = {
            "tokens_per_word": (self.tokens, self.words),
            "tokens_per_character": (self.tokens, self.characters),
            "bytes_per_token": (self.bytes, self.tokens),
            "unknown_rate": (self.unknown, self.tokens),
            "round_trip": (self.unchanged, self.texts),
        }
        return {name: part / whole if whole else 0.0 for name, (part, whole) in ratios.items()}


def evaluate_tokenizer(tokenizer: Tokenizer, texts: Iterable[str]) -> TokenizerReport:
    """Encode and decode a stream of texts and return the counts."""
    report = TokenizerReport()
    for batch in batches(texts, 1000):
        _add_batch(report, tokenizer, batch)
    return report


def _add_batch(report: TokenizerReport, tokenizer: Tokenizer, texts: list[str]) -> None:
    rows = tokenizer.encode_batch(texts)
    report.texts += len(texts)
    report.words += sum(len(text.split()) for text in texts)
    report.characters += sum(map(len, texts))
    report.bytes += sum(len(text.encode(errors="replace")) for text in texts)
    report.tokens += sum(map(len, rows))
    if tokenizer.unk_id is not None:
        report.unknown += sum(row.count(tokenizer.unk_id) for row in rows)
    report.unchanged += sum(map(str.__eq__, tokenizer.decode_batch(rows), texts))
