"""The built-in corpus: Chinese sentences and their English translations, spoken by our own small grammar.

In: nothing, not even a file. Out: training pairs and 500 held-out pairs, the same on every machine.
Told in docs/data.md, "The built-in corpus".
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, compress
from typing import NamedTuple
from zlib import crc32

# Importing these enters their patterns into the grammar.
from qkv.data.builtin import clauses, deeds, everyday, learning, world  # noqa: F401
from qkv.data.builtin.links import GoldLink, gold_links
from qkv.data.builtin.phrases import PATTERNS, Dice

HELD_OUT = 500
RARE = 25  # a word said less often than this is left out


class Pair(NamedTuple):
    """A Chinese sentence and its English translation."""

    source: str
    target: str

    @property
    def links(self) -> list[GoldLink]:
        """The gold word alignment, from characters of the source to words of the target."""
        return gold_links(self.source, self.target)


NOTES_SENTENCES = [
    Pair("我爱机器学习", "i love machine learning"),
    Pair("机器学习很有趣", "machine learning is interesting"),
    Pair("今天天气真好", "the weather is really nice today"),
    Pair(
        "这只动物没有穿过街道，因为它太累了",
        "the animal did not cross the street because it was too tired",
    ),
    Pair(
        "这只动物没有穿过街道，因为它太宽了",
        "the animal did not cross the street because it was too wide",
    ),
]


def builtin_pairs() -> tuple[list[Pair], list[Pair]]:
    """(train, held-out): no sentence of one is in the other, and the notes' sentences are only held out."""
    train, held_out = _split()
    return list(train), list(held_out)


@cache
def compositions() -> dict[str, list[Pair]]:
    """All that the grammar says, under the name of each pattern, without repetition and without the notes' sentences."""
    spoken: dict[str, list[Pair]] = {name: [] for name in sorted(PATTERNS)}
    for name, pair in _often_worded(_distinct()):
        spoken[name].append(pair)
    return spoken


def _distinct() -> list[tuple[str, Pair]]:
    """What the patterns say, each sentence once in either language."""
    english_of: dict[str, str] = {}
    targets: set[str] = set()
    spoken = []
    for name, pair in _drawn():
        known = english_of.setdefault(pair.source, pair.target)
        assert known == pair.target, f"{pair.source} has two translations: {known}, {pair.target}"
        if pair.target not in targets and not _quotes_the_notes(pair):
            targets.add(pair.target)
            spoken.append((name, pair))
    return spoken


def _often_worded(spoken: list[tuple[str, Pair]]) -> list[tuple[str, Pair]]:
    """Without the sentences that use a word too rare to be learnt; leaving some out can make other words rare."""
    worded = [(entry, _words(entry[1])) for entry in spoken]
    counts = Counter(chain.from_iterable(words for _, words in worded))
    while rare := {word for word, count in counts.items() if 0 < count < RARE}:
        common = [rare.isdisjoint(words) for _, words in worded]
        counts.subtract(
            chain.from_iterable(
                words for (_, words), keep in zip(worded, common, strict=True) if not keep
            )
        )
        worded = list(compress(worded, common))
    return [entry for entry, _ in worded]


def _words(pair: Pair) -> list[str]:
    """English words, and Chinese characters, which need no splitting."""
    return [*pair.source, *pair.target.replace(",", "").split()]


def _drawn() -> Iterator[tuple[str, Pair]]:
    """Every pattern, drawn as often as it asks; each has a dice of its own, so that changing one leaves the others."""
    for name, (speak, draws) in sorted(PATTERNS.items()):
        dice = Dice(crc32(name.encode()))
        yield from ((name, Pair(*speak(dice))) for _ in range(draws))


def _quotes_the_notes(pair: Pair) -> bool:
    return any(note.source in pair.source or note.target in pair.target for note in NOTES_SENTENCES)


@cache
def _split() -> tuple[list[Pair], list[Pair]]:
    """Evenly spaced sentences are held out, so that every pattern gives its share."""
    everything = [pair for pairs in compositions().values() for pair in pairs]
    wanted = HELD_OUT - len(NOTES_SENTENCES)
    held = {index * len(everything) // wanted for index in range(wanted)}
    train = [pair for index, pair in enumerate(everything) if index not in held]
    return _shuffled(train), [*NOTES_SENTENCES, *(everything[index] for index in sorted(held))]


def _shuffled(pairs: list[Pair]) -> list[Pair]:
    """In an order that mixes the patterns, always the same."""
    dice, rest = Dice(len(pairs)), list(pairs)
    for last in range(len(rest) - 1, 0, -1):
        other = dice.pick(range(last + 1))
        rest[last], rest[other] = rest[other], rest[last]
    return rest
