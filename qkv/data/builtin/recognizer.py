"""Membership test for the built-in grammar: can one of its patterns generate a Chinese sentence?

Each pattern is run once for every combination of choices that can still give the sentence.
See docs/guides/data.md.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

from qkv.data.builtin import corpus as builtin  # registers all patterns
from qkv.data.builtin.phrases import PATTERNS, Sampler

__all__ = ["recognize"]

T = TypeVar("T")
MAX_RUNS = 20_000  # of one pattern for one sentence; the built-in patterns need far fewer


class ReplaySampler(Sampler):
    """A sampler that replays given choices, then takes the first remaining one.

    `widths` are the numbers of alternatives. Only alternatives whose Chinese words occur in the
    sentence remain. If none does, the choice is not visible in the sentence (or a dead end), so one
    alternative represents all.
    """

    def __init__(self, sentence: str, choices: Sequence[int], known: dict[int, tuple[Any, Any]]):
        self.sentence, self.choices, self.known, self.widths = sentence, choices, known, list[int]()

    def pick(self, items: Sequence[T]) -> T:
        return self._choose(self._visible(items) or items[:1])

    def two(self, items: Sequence[T]) -> tuple[T, T]:
        """Pick two items; a pattern may replace one of them, so one may be absent."""
        visible = self._visible(items)
        absent = [item for item in items if item not in visible][:1]
        pairs = [
            (first, second)
            for first in visible + absent
            for second in visible + absent
            if first != second
        ]
        return self._choose(pairs or [(items[0], items[1])])

    def chance(self, probability: float) -> bool:
        return self._choose(
            [
                option
                for option, possible in ((True, probability > 0), (False, probability < 1))
                if possible
            ]
        )

    def _visible(self, items: Sequence[T]) -> list[T]:
        """Return the items in the sentence, cached by list: nearly all lists are constants.

        The cache holds the list, so that its id is not reused.
        """
        if id(items) not in self.known:
            visible = distinct(
                item for item in items if all(word in self.sentence for word in chinese_of(item))
            )
            self.known[id(items)] = items, visible
        return list(self.known[id(items)][1])

    def _choose(self, items: Sequence[T]) -> T:
        index = len(self.widths)
        self.widths.append(len(items))
        return items[self.choices[index] if index < len(self.choices) else 0]


def recognize(sentence: str) -> str | None:
    """Return the name of a pattern that generates this Chinese sentence, or None.

    >>> recognize("今天天气真好") is None, recognize("好今天天气真") is None
    (False, True)
    """
    known: dict[int, tuple[Any, Any]] = {}
    return next(
        (name for name in _likely_first(sentence) if _generates(name, sentence, known)), None
    )


def _likely_first(sentence: str) -> list[str]:
    """Return all patterns, by the number of bigrams their sentences share with this one."""
    own = set(map("".join, pairwise(sentence)))
    return sorted(PATTERNS, key=lambda name: (-len(own & _bigrams()[name]), name))


@cache
def _bigrams() -> dict[str, set[str]]:
    pairs = builtin.compositions()
    return {
        name: {a + b for pair in pairs.get(name, []) for a, b in pairwise(pair.source)}
        for name in PATTERNS
    }


@cache
def _corpus() -> frozenset[str]:
    return frozenset(pair.source for pairs in builtin.compositions().values() for pair in pairs)


def is_sentence(text: str) -> bool:
    """Return whether the grammar generates this text; sentences of the corpus need no search."""
    return text in _corpus() or recognize(text) is not None


def _generates(name: str, sentence: str, known: dict[int, tuple[Any, Any]]) -> bool:
    """Search the choices of one pattern depth-first; there are no false positives."""
    generate, _ = PATTERNS[name]
    choices: list[int] | None = []
    for _run in range(MAX_RUNS):
        rng = ReplaySampler(sentence, choices or [], known)
        if generate(rng)[0] == sentence:
            return True
        choices = _next(choices or [], rng.widths)
        if choices is None:
            return False
    return False


def _next(choices: list[int], widths: list[int]) -> list[int] | None:
    """Return the next choices in lexicographic order; None after the last."""
    full = [*choices, *[0] * (len(widths) - len(choices))]
    while full and full[-1] + 1 >= widths[len(full) - 1]:
        full.pop()
    return [*full[:-1], full[-1] + 1] if full else None


def distinct(items: Iterable[T]) -> list[T]:
    """Return each item once, in order; items need not be hashable."""
    found: list[T] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def chinese_of(item: Any) -> tuple[str, ...]:
    """Return the Chinese words of an item; () for a letter, a function or a form."""
    if hasattr(item, "zh"):
        return (item.zh,)
    if hasattr(item, "verb") and hasattr(item, "object"):
        return (*chinese_of(item.verb), *chinese_of(item.object))
    return ()
