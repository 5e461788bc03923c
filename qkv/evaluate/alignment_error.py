"""Alignment error rate (AER), precision and recall of a translator against gold word alignments.

Gold links are sure or possible. See docs/guides/translation.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from qkv.data.builtin.links import GoldLink

__all__ = ["alignment_error_rate"]


class SpanLink(NamedTuple):
    """A predicted link: the characters source[start:end] and the target word number `word`."""

    start: int
    end: int
    word: int


class GoldPair(Protocol):
    """A sentence pair with its gold links."""

    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def links(self) -> "Sequence[GoldLink]": ...


@dataclass(frozen=True)
class AlignmentScore:
    """Counts over a corpus: predicted links A, sure links S, |A & S| and |A & P|."""

    predicted: int = 0
    sure: int = 0
    predicted_sure: int = 0
    predicted_possible: int = 0

    def __add__(self, other: "AlignmentScore") -> "AlignmentScore":
        return AlignmentScore(*map(add, astuple(self), astuple(other)))

    @property
    def error_rate(self) -> float:
        """AER = 1 - (|A & S| + |A & P|) / (|A| + |S|); 0 if there are no links."""
        links = self.predicted + self.sure
        return 1 - (self.predicted_sure + self.predicted_possible) / links if links else 0.0

    @property
    def precision(self) -> float:
        return self.predicted_possible / self.predicted if self.predicted else 1.0

    @property
    def recall(self) -> float:
        return self.predicted_sure / self.sure if self.sure else 1.0


def compare_links(predicted: Iterable[SpanLink], gold: "Sequence[GoldLink]") -> AlignmentScore:
    """Counts for one sentence; a possible gold link may be left out without a penalty.

    The tokens of a model are not the words of the gold alignment: a predicted link hits each gold
    link of its target word whose span it overlaps. It counts once, as sure if one of them is sure;
    a sure link that is hit twice counts once.
    """
    links, hits, possible = set(predicted), set(), 0
    for link in links:
        found = [
            other
            for other in gold
            if other.word == link.word and other.start < link.end and link.start < other.end
        ]
        hits |= {(other.start, other.word) for other in found if other.sure}
        possible += bool(found)
    return AlignmentScore(len(links), sum(other.sure for other in gold), len(hits), possible)


def alignment_score(translator: Any, pairs: Iterable[GoldPair]) -> AlignmentScore:
    """Compare a translator's alignments of given translations with the gold links."""
    total = AlignmentScore()
    for pair in pairs:
        links = translator.span_links(pair.source, pair.target)
        total += compare_links(map(SpanLink._make, links), pair.links)
    return total


def alignment_error_rate(translator: Any, pairs: Iterable[GoldPair]) -> float:
    """The AER of a translator on pairs with gold links, between 0 (best) and 1."""
    return alignment_score(translator, pairs).error_rate
