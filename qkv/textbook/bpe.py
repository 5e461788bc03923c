"""Byte-pair encoding (BPE): repeatedly merge the most frequent pair of adjacent symbols.

Training takes word counts and gives merges in order; `apply` splits any word with them.
See docs/explanation/tokenization.md, "BPE training".

Ties: symbols are numbered, first the single characters in code-point order, then those with `</w>`,
then each merge. Of equally frequent pairs the one with the smaller left number comes first, then
the one with the smaller right number.
"""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise

__all__ = [
    "Corpus", "alphabet", "apply", "byte_chars", "byte_words", "characters", "merge", "train",
]

Pair = tuple[str, str]
END = "</w>"
# GPT-2's byte-to-character table: printable Latin-1 as it is, the other bytes from U+0100.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
BYTE_CHARS = {byte: chr(byte) for byte in _PRINTABLE}
BYTE_CHARS |= {byte: chr(256 + i) for i, byte in enumerate(sorted({*range(256)} - {*_PRINTABLE}))}
# English endings; letters, digits or other symbols, with the space before; other white space.
_BYTE_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def characters(word: str) -> list[str]:
    """The characters of a word, the last one marked: characters("low") == ["l", "o", "w</w>"]."""
    return [*word[:-1], word[-1] + END]


def byte_chars(word: str) -> list[str]:
    """UTF-8 bytes as printable characters: byte_chars(" 好") == ["Ġ", "å", "¥", "½"]."""
    return [BYTE_CHARS[byte] for byte in word.encode()]


def byte_words(text: str) -> list[str]:
    """Pre-tokenization: no merge crosses words; byte_words("I've 2") == ["I", "'ve", " 2"]."""
    return _BYTE_WORD.findall(text)


class Corpus:
    """Each distinct word once, as symbols, with pair counts that are updated while merging."""

    def __init__(self, words: Mapping[str, int], split: Callable[[str], list[str]]):
        self.texts, self.frequencies = [split(word) for word in words], list(words.values())
        self.counts: Counter[Pair] = Counter()
        self.words_with: dict[Pair, set[int]] = defaultdict(set)
        for i, text in enumerate(self.texts):
            for pair in pairwise(text):
                self.counts[pair] += self.frequencies[i]
                self.words_with[pair].add(i)

    def merge(self, pair: Pair) -> set[Pair]:
        """Merge the pair in every word that has it; returns the new pairs."""
        new_pairs = set()
        for i in self.words_with.pop(pair):
            for neighbors, change in merge(self.texts[i], pair):
                self.counts[neighbors] += change * self.frequencies[i]
                if change > 0:
                    self.words_with[neighbors].add(i)
                    new_pairs.add(neighbors)
        return {pair for pair in new_pairs if self.counts[pair] > 0}


def train(
    words: Mapping[str, int], n_merges: int, split: Callable[[str], list[str]] = characters
) -> list[Pair]:
    """The first `n_merges` merges, most frequent pair first.

    >>> train({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 3)
    [('e', 's'), ('es', 't</w>'), ('l', 'o')]
    """
    corpus, merges = Corpus(words, split), list[Pair]()
    counts, number = corpus.counts, {symbol: n for n, symbol in enumerate(alphabet(corpus.texts))}

    def entry(pair: Pair) -> tuple[int, int, int, Pair]:
        return -counts[pair], number[pair[0]], number[pair[1]], pair

    queue = sorted(entry(pair) for pair in counts)  # a sorted list is a heap
    while queue and len(merges) < n_merges:
        negative_count, _, _, pair = heapq.heappop(queue)
        if counts[pair] == -negative_count:
            merges.append(pair)
            number.setdefault(pair[0] + pair[1], len(number))
            for new in corpus.merge(pair):
                heapq.heappush(queue, entry(new))
        elif counts[pair] > 0:  # the count in the queue is out of date
            heapq.heappush(queue, entry(pair))
    return merges


def alphabet(texts: Iterable[list[str]]) -> list[str]:
    """Symbols in the order of ties: alphabet([["b", "a</w>"], ["c"]]) == ["b", "c", "a</w>"]."""
    symbols = {symbol for text in texts for symbol in text}
    return sorted(symbols, key=lambda symbol: (len(symbol), symbol))


def merge(text: list[str], pair: Pair) -> list[tuple[Pair, int]]:
    """Merge every `pair` in `text`, left to right; returns pairs removed (-1) and added (+1)."""
    (a, b), changes, i = pair, [], -1
    with suppress(ValueError):  # no further a
        while True:
            i = text.index(a, i + 1)
            if text[i + 1:i + 2] == [b]:
                changes.append((pair, -1))
                if i > 0:
                    changes += [((text[i - 1], a), -1), ((text[i - 1], a + b), +1)]
                if i + 2 < len(text):
                    changes += [((b, text[i + 2]), -1), ((a + b, text[i + 2]), +1)]
                text[i:i + 2] = [a + b]
    return changes


def apply(text: list[str], merges: Iterable[Pair]) -> list[str]:
    """Apply merges in order: apply(characters("lows"), [("l", "o")]) == ["lo", "w", "s</w>"]."""
    text, present = list(text), set(text)
    for a, b in merges:
        if a in present and b in present:
            merge(text, (a, b))
            present.add(a + b)
    return text
