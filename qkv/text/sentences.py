"""Where sentences end, for texts too long to be translated in one go.

In: a text in Chinese or a western script. Out: its sentences or clauses; joined, they are the text again, character by
character. Told in docs/translation.md, "Long texts".
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

EASTERN = "\u2e80-\u303f\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_CLOSING = "[”’»」』）】》\"')\\]]*"
# Chinese marks end a sentence wherever they stand; western ones before a space, the end or a Chinese character.
_SENTENCE_END = re.compile(
    rf"(?:[。！？｡]+|…{{2,}}|[.!?…]+(?={_CLOSING}(?:\s|$|[{EASTERN}]))){_CLOSING}\s*"
)
_CLAUSE_END = re.compile(r"(?:[，；：、]|[,;:](?=\s)|\s[-–—](?=\s)|——)\s*")
_WORD_END = re.compile(r"\s+")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Lt|Sgt|vs|etc|cf|Fig|fig|No|Nr|vol|pp|ca|approx|Bd|bzw|usw|Hr|Fr)"
    r"|\b(?:e\.g|i\.e|z\.B|d\.h|u\.a|a\.m|p\.m|U\.S|Ph\.D)|(?:^|[\s.(])[A-Z])\.$"
)


def split_sentences(text: str) -> list[str]:
    """The sentences, each with the space after it.

    >>> split_sentences("Dr. Li came. 他很累。“为什么？”她问。")
    ['Dr. Li came. ', '他很累。', '“为什么？”', '她问。']
    """
    return _cut(
        text, (end.end() for end in _SENTENCE_END.finditer(text) if not _goes_on(text, end))
    )


def split_clauses(text: str) -> list[str]:
    """The clauses: split_clauses("我来了，他走了。") == ['我来了，', '他走了。']."""
    return _cut(text, (end.end() for end in _CLAUSE_END.finditer(text)))


def split_words(text: str) -> list[str]:
    """What stands between spaces: split_words("one two") == ['one ', 'two']."""
    return _cut(text, (end.end() for end in _WORD_END.finditer(text)))


def split_to_fit(
    text: str,
    size_of: Callable[[str], int],
    limit: int,
    ways: Sequence[Callable[[str], list[str]]] = (split_clauses, split_words, list),
) -> list[str]:
    """Parts of at most `limit`, cut at clauses if that is enough, else between words, else between characters."""
    if size_of(text) <= limit or not ways:
        return [text]
    parts = [
        small for part in ways[0](text) for small in split_to_fit(part, size_of, limit, ways[1:])
    ]
    return _packed(parts, size_of, limit)


def join_sentences(parts: Sequence[str]) -> str:
    """Translated parts as one text; a space stands between them unless one side is Chinese or Japanese.

    >>> join_sentences(["I am tired.", "Good night."]), join_sentences(["我累了。", "晚安。"])
    ('I am tired. Good night.', '我累了。晚安。')
    """
    joined = ""
    for part in filter(None, parts):
        close = not joined or re.search(f"[{EASTERN}]$", joined) or re.match(f"[{EASTERN}]", part)
        joined += part if close else f" {part}"
    return joined


def _goes_on(text: str, end: re.Match[str]) -> bool:
    """A full stop after an abbreviation, or before a small letter, ends nothing."""
    if not end.group().startswith("."):
        return False
    return (
        bool(_ABBREVIATION.search(text[: end.start() + 1][-12:]))
        or text[end.end() : end.end() + 1].islower()
    )


def _cut(text: str, ends: Iterator[int]) -> list[str]:
    cuts = [0, *(end for end in ends if 0 < end < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]


def _packed(parts: list[str], size_of: Callable[[str], int], limit: int) -> list[str]:
    """Neighbours together again, as many as fit: fewer seams, better translations."""
    packed = parts[:1]
    for part in parts[1:]:
        if size_of(packed[-1] + part) <= limit:
            packed[-1] += part
        else:
            packed.append(part)
    return packed
