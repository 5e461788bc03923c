"""Sentence segmentation of long texts for translation: Chinese, Japanese and Western scripts.

The segments, concatenated, are the text. See docs/guides/translation.md.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

CJK = "\u2e80-\u303f\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_CLOSING = "[”’»」』）】》\"')\\]]*"
# Chinese punctuation always ends a sentence; Western punctuation before a space, the end of the
# text or a Chinese character.
_SENTENCE_END = re.compile(
    rf"(?:[。！？｡]+|…{{2,}}|[.!?…]+(?={_CLOSING}(?:\s|$|[{CJK}]))){_CLOSING}\s*"
)
_CLAUSE_END = re.compile(r"(?:[，；：、]|[,;:](?=\s)|\s[-–—](?=\s)|——)\s*")
_WORD_END = re.compile(r"\s+")
_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|Gen|Col|Capt|Lt|Sgt|vs|etc|cf|Fig|fig|No|Nr|vol|pp|ca"
    r"|approx|Bd|bzw|usw|Hr|Fr)"
    r"|\b(?:e\.g|i\.e|z\.B|d\.h|u\.a|a\.m|p\.m|U\.S|Ph\.D)|(?:^|[\s.(])[A-Z])\.$"
)


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, each with the space after it.

    >>> split_sentences("Dr. Li came. 他很累。“为什么？”她问。")
    ['Dr. Li came. ', '他很累。', '“为什么？”', '她问。']
    """
    ends = _SENTENCE_END.finditer(text)
    return _split_at(text, (end for end in ends if not _is_abbreviation(text, end)))


def split_clauses(text: str) -> list[str]:
    """Split a text into clauses: split_clauses("我来了，他走了。") == ['我来了，', '他走了。']."""
    return _split_at(text, _CLAUSE_END.finditer(text))


def split_words(text: str) -> list[str]:
    """Split a text after each space: split_words("one two") == ['one ', 'two']."""
    return _split_at(text, _WORD_END.finditer(text))


def split_to_fit(
    text: str,
    size_of: Callable[[str], int],
    limit: int,
    splitters: Sequence[Callable[[str], list[str]]] = (split_clauses, split_words, list),
) -> list[str]:
    """Split a text into parts of at most `limit`.

    Args:
        text: The text, usually a sentence.
        size_of: The size of a part, such as its number of tokens.
        limit: The maximum size.
        splitters: Tried in order on parts that are too large: clauses, words, characters.
    """
    if size_of(text) <= limit or not splitters:
        return [text]
    parts = [
        subpart
        for part in splitters[0](text)
        for subpart in split_to_fit(part, size_of, limit, splitters[1:])
    ]
    return _pack(parts, size_of, limit)


def join_sentences(parts: Sequence[str]) -> str:
    """Join translated parts, with a space unless one side is Chinese or Japanese.

    >>> join_sentences(["I am tired.", "Good night."]), join_sentences(["我累了。", "晚安。"])
    ('I am tired. Good night.', '我累了。晚安。')
    """
    joined = ""
    for part in filter(None, parts):
        no_space = not joined or re.search(f"[{CJK}]$", joined) or re.match(f"[{CJK}]", part)
        joined += part if no_space else f" {part}"
    return joined


def _is_abbreviation(text: str, end: re.Match[str]) -> bool:
    """Return whether a period follows an abbreviation or precedes a lowercase letter."""
    if text[end.start()] != ".":
        return False
    follows = _ABBREVIATION.search(text[: end.start() + 1][-12:])
    return bool(follows) or text[end.end() : end.end() + 1].islower()


def _split_at(text: str, ends: Iterator[re.Match[str]]) -> list[str]:
    boundaries = [0, *(end.end() for end in ends if end.end() < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(boundaries)]


def _pack(parts: list[str], size_of: Callable[[str], int], limit: int) -> list[str]:
    """Merge adjacent parts while they fit: fewer, longer parts translate better."""
    packed = parts[:1]
    for part in parts[1:]:
        if size_of(packed[-1] + part) <= limit:
            packed[-1] += part
        else:
            packed.append(part)
    return packed
