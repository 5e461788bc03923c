"""Gold word alignments of the built-in corpus: which Chinese word each English word comes from.

In: a pair that the grammar composed. Out: links, each from a span of characters to an English word. Every Chinese word of the
grammar has few translations, so its English word in the sentence is known. Explained in docs/data.md, "Gold alignments".
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import NamedTuple

from qkv.data.builtin import actions as builtin_actions
from qkv.data.builtin import english as builtin_english
from qkv.data.builtin import words as builtin_words
from qkv.data.builtin.link_words import FUNCTION_WORDS, LITERAL_WORDS, MEASURE_WORDS, SPLITS
from qkv.text.words import word_spans

DETERMINERS = {"这": ("the", "this"), "那": ("that",), "一": ("a", "an"), "这些": ("these",)}
CONNECTIVES = (
    "because",
    "but",
)  # they begin a clause in English; in Chinese, a comma stands before it
IDIOMS = {word.zh for word in LITERAL_WORDS if " " in word.en} | {
    "邮局",
    "纽约",
    "旁边",
    "前面",
    "寻找",
    "等",
}
LONGEST = 6  # characters of a Chinese word: 自然语言处理
LATE = ("和", "的")  # in a comparison, 和 is the second "as"; 的 is "in" only where 里 is not
PARTNERS = {"里": "在", "上": "在", "中": "从", "了": "太"}
PREFIXES = ("最", "更", "本来")
COUNTERS = {*DETERMINERS, "每", *(word.zh for word in builtin_actions.AMOUNTS), "多少"}


class GoldLink(NamedTuple):
    """The characters source[start:end] and the English word number `word` correspond; a possible link may be left out."""

    start: int
    end: int
    word: int
    sure: bool = True


class Segment(NamedTuple):
    """A Chinese word at its place, the English phrases it may stand for, and in which clause it is."""

    start: int
    text: str
    phrases: tuple[str, ...]
    clause: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def gold_links(source: str, target: str) -> list[GoldLink]:
    """The links of a pair of the built-in grammar, in the order of the English words."""
    return sorted(
        _Linker(source, target).links(), key=lambda link: (link.word, not link.sure, link.start)
    )


def pharaoh(links: Sequence[GoldLink]) -> str:
    """Links as a line in Pharaoh format, "0-0 1-2": each Chinese character is a word; where a word has no sure link, its possible ones."""
    sure = {link.word for link in links if link.sure}
    kept = [link for link in links if link.sure or link.word not in sure]
    return " ".join(
        f"{character}-{link.word}" for link in kept for character in range(link.start, link.end)
    )


class _Linker:
    """Content words take their English words first, then determiners, then function words, each the first that is free."""

    def __init__(self, source: str, target: str):
        self.words = [target[start:end] for start, end in word_spans(target)]
        self.segments = list(segments(source))
        self.clause_of = _clauses(self.words, self.segments[-1].clause)
        self.places: dict[str, list[range]] = {}  # of each phrase of up to three words
        for start, end in combinations(range(len(self.words) + 1), 2):
            if end - start <= 3:
                self.places.setdefault(" ".join(self.words[start:end]), []).append(
                    range(start, end)
                )
        self.taken: dict[int, Segment] = {}  # English word -> the Chinese word it surely comes from
        self.possible: dict[tuple[Segment, int], None] = {}

    def links(self) -> list[GoldLink]:
        for segment in self.segments:
            self._take(segment, segment.phrases)
            if segment.text == "它":
                self._take_named(segment)
        for index, segment in enumerate(self.segments):
            if segment.text in DETERMINERS and not segment.phrases:
                self._take_determiner(segment, self.segments[index + 1 :])
        for segment in sorted(self.segments, key=lambda one: one.text in LATE):
            self._take_slots(segment)
        self._link_possible()
        sure = [GoldLink(one.start, one.end, word) for word, one in self.taken.items()]
        return sure + [
            GoldLink(one.start, one.end, word, sure=False)
            for one, word in self.possible
            if self.taken.get(word) != one
        ]

    def _find(self, segment: Segment, phrase: str) -> range | None:
        """The first place of a phrase whose words are all free, in the segment's own clause."""
        for places in self.places.get(phrase, ()):
            if all(self._free(place, segment) for place in places):
                return places
        return None

    def _free(self, place: int, segment: Segment) -> bool:
        return place not in self.taken and self.clause_of[place] == segment.clause

    def _take(self, segment: Segment, phrases: Iterable[str]) -> None:
        """The longest of the phrases that is there, and of equally long ones the leftmost."""
        found = [places for phrase in phrases if (places := self._find(segment, phrase))]
        for places in sorted(found, key=lambda one: (-len(one), one[0]))[:1]:
            self.taken.update(dict.fromkeys(places, segment))

    def _take_named(self, segment: Segment) -> None:
        """它 that is translated with its noun: what stands between but and was."""
        if segment not in self.taken.values() and "but" in self.words:
            places = range(self.words.index("but") + 1, self.words.index("was"))
            self.taken.update(dict.fromkeys(places, segment))

    def _take_determiner(self, segment: Segment, following: list[Segment]) -> None:
        """The nearest free article on the left of the English word of what follows."""
        noun = next((one for one in following if one in self.taken.values()), None)
        first = min(
            (word for word, one in self.taken.items() if one == noun), default=len(self.words)
        )
        for place in range(first - 1, -1, -1):
            if self._free(place, segment) and self.words[place] in DETERMINERS[segment.text]:
                self.taken[place] = segment
                return

    def _take_slots(self, segment: Segment) -> None:
        for slot in () if segment.phrases else FUNCTION_WORDS.get(segment.text, ()):
            found = [
                places[0]
                for word in slot.removeprefix("?").split("/")
                if (places := self._find(segment, word))
            ]
            if found and slot.startswith("?"):
                self.possible[segment, found[0]] = None
            elif found:
                self.taken[found[0]] = segment

    def _link_possible(self) -> None:
        """Links that may be left out: particles with the word they belong to, comparatives' more, to with the verb before it."""
        for index, segment in enumerate(self.segments):
            partner = self._partner(index) if segment not in self.taken.values() else None
            self.possible.update(
                {(segment, word): None for word, one in self.taken.items() if one == partner}
            )
        for place, word in enumerate(self.words):
            neighbor = self.taken.get(place + 1 if word in ("more", "most") else place - 1)
            if place not in self.taken and word in ("more", "most", "to") and neighbor is not None:
                self.possible[neighbor, place] = None

    def _partner(self, index: int) -> Segment | None:
        """The Chinese word whose English words a particle shares: 只 those of 这, 了 those of the verb, 最 the adjective's."""
        segment, clause = (
            self.segments[index],
            [one for one in self.segments if one.clause == self.segments[index].clause],
        )
        if segment.text in PARTNERS and (
            found := [one for one in clause if one.text == PARTNERS[segment.text]]
        ):
            return found[0]
        if segment.text in PREFIXES:
            return self.segments[index + 1]
        before = self.segments[index - 1]
        counted = segment.text in MEASURE_WORDS and before.text in COUNTERS
        described = segment.text == "的" and not any(one.text == "关于" for one in clause)
        return before if counted or described or segment.text in ("了", "们") else None


def segments(source: str) -> Iterator[Segment]:
    """The Chinese words by longest match; compounds are split."""
    start, clause, lexicon = 0, 0, _lexicon()
    while start < len(source):
        text = next(
            (
                source[start:end]
                for end in range(start + LONGEST, start, -1)
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
    """The clause of each English word: a comma ends one; without a comma, because and but begin one."""
    clause, found = 0, []
    for word in words:
        clause += last > 0 and "," not in words and word in CONNECTIVES
        found.append(clause)
        clause += word == ","
    return found


@cache
def _lexicon() -> dict[str, tuple[str, ...]]:
    """Each Chinese word with all forms of its translations."""
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
    """Every word in a table, however deep."""
    if isinstance(table, builtin_words.Word | builtin_words.Noun):
        yield table.zh, table.en
    elif isinstance(table, dict | list | tuple):
        for one in table.values() if isinstance(table, dict) else table:
            yield from _entries(one)


def _forms(phrase: str) -> list[str]:
    """A phrase without its article, and the endings that a sentence may give it."""
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
