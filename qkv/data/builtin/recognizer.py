"""Membership test for the built-in grammar: can any of its patterns generate this Chinese sentence?

In: a sentence. Out: the name of a pattern that generates it, or None. Each pattern is run once for every combination of
choices that can still give the sentence. Told in docs/data.md, "The built-in corpus".
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from qkv.data.builtin import corpus as builtin  # importing it enters all patterns into the grammar
from qkv.data.builtin.phrases import PATTERNS, Dice

T = TypeVar("T")
MOST_RUNS = (
    20_000  # of one pattern for one sentence; the built-in patterns stay far below (tests/data)
)


class ReplayDice(Dice):
    """A dice that replays given choices and then takes the first one left; `widths` tells how many there were.

    Only choices whose Chinese words occur in the sentence are left. Where none does, the choice is one that the sentence does
    not show (or a dead end), so a single one stands for all.
    """

    def __init__(self, sentence: str, choices: Sequence[int], known: dict[int, tuple[Any, Any]]):
        self.sentence, self.choices, self.known, self.widths = sentence, choices, known, list[int]()

    def pick(self, items: Sequence[T]) -> T:
        return self._chosen(self._shown(items) or items[:1])

    def two(self, items: Sequence[T]) -> tuple[T, T]:
        """A pattern may replace one of the two, so one of them may be a choice that the sentence does not show."""
        shown = self._shown(items)
        hidden = [item for item in items if item not in shown][:1]
        pairs = [
            (first, second)
            for first in shown + hidden
            for second in shown + hidden
            if first != second
        ]
        return self._chosen(pairs or [(items[0], items[1])])

    def chance(self, probability: float) -> bool:
        return self._chosen(
            [
                option
                for option, possible in ((True, probability > 0), (False, probability < 1))
                if possible
            ]
        )

    def _shown(self, items: Sequence[T]) -> list[T]:
        """Kept for the sentence: nearly all lists are constants of the grammar (holding the list keeps its id from being reused)."""
        if id(items) not in self.known:
            shown = distinct(
                item for item in items if all(word in self.sentence for word in chinese_of(item))
            )
            self.known[id(items)] = items, shown
        return list(self.known[id(items)][1])

    def _chosen(self, left: Sequence[T]) -> T:
        place = len(self.widths)
        self.widths.append(len(left))
        return left[self.choices[place] if place < len(self.choices) else 0]


def recognize(sentence: str) -> str | None:
    """The name of a pattern that generates this Chinese sentence; None if the grammar has none.

    >>> recognize("今天天气真好") is None, recognize("好今天天气真") is None
    (False, True)
    """
    known: dict[int, tuple[Any, Any]] = {}
    return next(
        (name for name in _likely_first(sentence) if _generates(name, sentence, known)), None
    )


def _likely_first(sentence: str) -> list[str]:
    """All patterns, those first whose sentences of the corpus share most pairs of characters with this one."""
    own = set(map("".join, pairwise(sentence)))
    return sorted(PATTERNS, key=lambda name: (-len(own & _bigrams()[name]), name))


@cache
def _bigrams() -> dict[str, set[str]]:
    spoken = builtin.compositions()
    return {
        name: {a + b for pair in spoken.get(name, []) for a, b in pairwise(pair.source)}
        for name in PATTERNS
    }


@cache
def _corpus() -> frozenset[str]:
    return frozenset(pair.source for pairs in builtin.compositions().values() for pair in pairs)


def is_sentence(text: str) -> bool:
    """Whether the grammar generates this text; what it has drawn for the corpus needs no search."""
    return text in _corpus() or recognize(text) is not None


def _generates(name: str, sentence: str, known: dict[int, tuple[Any, Any]]) -> bool:
    """Depth-first search over the choices of one pattern; what it finds is the sentence itself, so it never errs by accepting."""
    speak, _ = PATTERNS[name]
    choices: list[int] | None = []
    for _run in range(MOST_RUNS):
        dice = ReplayDice(sentence, choices or [], known)
        if speak(dice)[0] == sentence:
            return True
        choices = _next(choices or [], dice.widths)
        if choices is None:
            return False
    return False


def _next(choices: list[int], widths: list[int]) -> list[int] | None:
    """The choices that follow in the order of an odometer, the last place first; None after the last."""
    full = [*choices, *[0] * (len(widths) - len(choices))]
    while full and full[-1] + 1 >= widths[len(full) - 1]:
        full.pop()
    return [*full[:-1], full[-1] + 1] if full else None


def distinct(items: Iterable[T]) -> list[T]:
    """Each item once, in order; items need not be hashable."""
    found: list[T] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def chinese_of(item: Any) -> tuple[str, ...]:
    """The Chinese words that a sentence with this item shows; () for a choice of another kind (a letter, a function, a form)."""
    if hasattr(item, "zh"):
        return (item.zh,)
    if hasattr(item, "verb") and hasattr(item, "object"):
        return (*chinese_of(item.verb), *chinese_of(item.object))
    return ()
