"""Gold word alignments of the built-in corpus: the Chinese word that each English word comes from.

Every Chinese word of the grammar has few translations, so its English word is known.
See docs/guides/data.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from qkv.data.builtin import actions as builtin_actions
from qkv.data.builtin import english as builtin_english
from qkv.data.builtin import words as builtin_words
from qkv.data.builtin.link_words import FUNCTION_WORDS, LITERAL_WORDS, MEASURE_WORDS, SPLITS
from qkv.text.word_boundaries import word_spans

__all__ = ["pharaoh"]

DETERMINERS = {"这": ("the", "this"), "那": ("that",), "一": ("a", "an"), "这些": ("these",)}
CONNECTIVES = ("because", "but")  # begin a clause in English; Chinese has a comma before it
IDIOMS = {word.zh for word in LITERAL_WORDS if " " in word.en} | {
    "邮局",
    "纽约",
    "旁边",
    "前面",
    "寻找",
    "等",
}
MAX_WORD_LENGTH = 6  # characters: 自然语言处理
LINKED_LAST = ("和", "的")  # 和 is the second "as" of a comparison; 的 is "in" only without 里
PARTNERS = {"里": "在", "上": "在", "中": "从", "了": "太"}
PREFIXES = ("最", "更", "本来")
COUNTERS = {*DETERMINERS, "每", *(word.zh for word in builtin_actions.AMOUNTS), "多少"}


class GoldLink(NamedTuple):
    """A link from source[start:end] to the English word number `word`; sure or possible."""

    start: int
    end: int
    word: int
    sure: bool = True


class Segment(NamedTuple):
    """A Chinese word at its position, its possible English phrases, and its clause."""

    start: int
    text: str
    phrases: tuple[str, ...]
    clause: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def gold_links(source: str, target: str) -> list[GoldLink]:
    """Return the links of a pair of the built-in grammar, in the order of the English words."""
    return sorted(
        _Linker(source, target).links(), key=lambda link: (link.word, not link.sure, link.start)
    )


def pharaoh(links: Sequence[GoldLink]) -> str:
    """Return links in Pharaoh format, "0-0 1-2", where each Chinese character is a word.

    Possible links are used for words without a sure link.
    """
    sure = {link.word for link in links if link.sure}
    kept = [link for link in links if link.sure or link.word not in sure]
    return " ".join(
        f"{character}-{link.word}" for link in kept for character in range(link.start, link.end)
    )


class _Linker:
    """Greedy alignment: content words first, then determiners, then function words."""

    def __init__(self, source: str, target: str):
        self.words = [target[start:end] for start, end in word_spans(target)]
        self.segments = list(segments(source))
        self.clause_of = _clauses(self.words, self.segments[-1].clause)
        self.positions: dict[str, list[range]] = {}  # of each phrase of up to three words
        for start, end in combinations(range(len(self.words) + 1), 2):
            if end - start <= 3:
                phrase = " ".join(self.words[start:end])
                self.positions.setdefault(phrase, []).append(range(start, end))
        self.sure: dict[int, Segment] = {}  # English word -> Chinese word
        self.possible: dict[tuple[Segment, int], None] = {}

    def links(self) -> list[GoldLink]:
        for segment in self.segments:
            self._link(segment, segment.phrases)
            if segment.text == "它":
                self._link_named(segment)
        for index, segment in enumerate(self.segments):
            if segment.text in DETERMINERS and not segment.phrases:
                self._link_determiner(segment, self.segments[index + 1 :])
        for segment in sorted(self.segments, key=lambda segment: segment.text in LINKED_LAST):
            self._link_slots(segment)
        self._link_possible()
        sure = [GoldLink(segment.start, segment.end, word) for word, segment in self.sure.items()]
        return sure + [
            GoldLink(segment.start, segment.end, word, sure=False)
            for segment, word in self.possible
            if self.sure.get(word) != segment
        ]

    def _find(self, segment: Segment, phrase: str) -> range | None:
        """Return the first occurrence of a phrase without links, in the clause of the segment."""
        for positions in self.positions.get(phrase, ()):
            if all(self._free(position, segment) for position in positions):
                return positions
        return None

    def _free(self, position: int, segment: Segment) -> bool:
        return position not in self.sure and self.clause_of[position] == segment.clause

    def _link(self, segment: Segment, phrases: Iterable[str]) -> None:
        """Link the longest phrase that occurs; of equally long ones the leftmost."""
        found = [positions for phrase in phrases if (positions := self._find(segment, phrase))]
        for positions in sorted(found, key=lambda positions: (-len(positions), positions[0]))[:1]:
            self.sure.update(dict.fromkeys(positions, segment))

    def _link_named(self, segment: Segment) -> None:
        """Link 它 that is translated as its noun: the words between but and was."""
        if segment not in self.sure.values() and "but" in self.words:
            positions = range(self.words.index("but") + 1, self.words.index("was"))
            self.sure.update(dict.fromkeys(positions, segment))

    def _link_determiner(self, segment: Segment, following: list[Segment]) -> None:
        """Link the nearest article without a link to the left of the following word."""
        noun = next((other for other in following if other in self.sure.values()), None)
        first = min(
            (word for word, other in self.sure.items() if other == noun), default=len(self.words)
        )
        for position in range(first - 1, -1, -1):
            if self._free(position, segment) and self.words[position] in DETERMINERS[segment.text]:
                self.sure[position] = segment
                return

    def _link_slots(self, segment: Segment) -> None:
        for slot in () if segment.phrases else FUNCTION_WORDS.get(segment.text, ()):
            found = [
                positions[0]
                for word in slot.removeprefix("?").split("/")
                if (positions := self._find(segment, word))
            ]
            if found and slot.startswith("?"):
                self.possible[segment, found[0]] = None
            elif found:
                self.sure[found[0]] = segment

    def _link_possible(self) -> None:
        """Add possible links: particles, more and most of comparatives, to after a verb."""
        for index, segment in enumerate(self.segments):
            partner = self._partner(index) if segment not in self.sure.values() else None
            self.possible.update(
                {(segment, word): None for word, other in self.sure.items() if other == partner}
            )
        for position, word in enumerate(self.words):
            neighbor = self.sure.get(position + 1 if word in ("more", "most") else position - 1)
            if (
                word in ("more", "most", "to")
                and position not in self.sure
                and neighbor is not None
            ):
                self.possible[neighbor, position] = None

    def _partner(self, index: int) -> Segment | None:
        """Return the word whose links a particle shares: 只 with 这, 了 with the verb before it."""
        segment = self.segments[index]
        clause = [other for other in self.segments if other.clause == segment.clause]
        if segment.text in PARTNERS and (
            found := [other for other in clause if other.text == PARTNERS[segment.text]]
        ):
            return found[0]
        if segment.text in PREFIXES:
            return self.segments[index + 1]
        before = self.segments[index - 1]
        counted = segment.text in MEASURE_WORDS and before.text in COUNTERS
        described = segment.text == "的" and not any(other.text == "关于" for other in clause)
        return before if counted or described or segment.text in ("了", "们") else None


def segments(source: str) -> Iterator[Segment]:
    """Yield the Chinese words by longest match; compounds are split."""
    start, clause, lexicon = 0, 0, _lexicon()
    while start < len(source):
        text = next(
            (
                source[start:end]
                for end in range(start + MAX_WORD_LENGTH, start, -1)
                if source[start:end] in lexicon
            ),
            source[start],
        )
        for part, english in SPLITS.get(text, [(text, "")]):
            phrases = tuple(_forms(english.replace("+", " "))) if english else lexicon.get(part, ())
            yield Segment(start, part, phrases, clause)
            start += len(part)
        clause += text == "，"


def _clauses(words: list[str], last: int) -> list[int]:
    """Return the clause of each English word, separated by commas, else by because and but."""
    clause, found = 0, []
    for word in words:
        clause += last > 0 and "," not in words and word in CONNECTIVES
        found.append(clause)
        clause += word == ","
    return found


@cache
def _lexicon() -> dict[str, tuple[str, ...]]:
    """Return each Chinese word with all forms of its translations."""
    found: dict[str, dict[str, None]] = {}
    tables = [*vars(builtin_words).values(), *vars(builtin_actions).values(), LITERAL_WORDS]
    for zh, en in (entry for table in tables for entry in _entries(table)):
        if not zh.startswith("这") and (" " not in _forms(en)[0] or zh in IDIOMS):
            found.setdefault(zh, {}).update(dict.fromkeys(_forms(en)))
    return dict.fromkeys([*FUNCTION_WORDS, *DETERMINERS, *MEASURE_WORDS, *SPLITS], ()) | {
        zh: tuple(forms)
        for zh, forms in found.items()
        if zh and zh not in FUNCTION_WORDS and zh not in SPLITS
    }


def _entries(table: object) -> Iterator[tuple[str, str]]:
    """Yield every word in a table, at any depth."""
    if isinstance(table, builtin_words.Word | builtin_words.Noun):
        yield table.zh, table.en
    elif isinstance(table, dict | list | tuple):
        for entry in table.values() if isinstance(table, dict) else table:
            yield from _entries(entry)


def _forms(phrase: str) -> list[str]:
    """Return a phrase without its article, and its inflected forms."""
    plain = phrase.removeprefix("to ").removeprefix("the ").removeprefix("a ")
    if len(plain) < 2:  # "i" has no endings
        return [plain]
    endings = (
        builtin_english.third,
        builtin_english.past,
        builtin_english.participle,
        builtin_english.ing,
        builtin_english.plural,
        builtin_english.more,
        builtin_english.most,
    )
    return [
        plain,
        *(form for ending in endings if (form := ending(plain)).count(" ") == plain.count(" ")),
        f"{plain}'s",
    ]
