"""Byte-pair encoding, told plainly: count neighbours, merge the most frequent, rewrite, repeat.

In: words and how often each occurs. Out: merges in order; they turn any word into pieces.
Told in docs/tokenizers.md, "How BPE learns".

Ties: symbols are numbered: first the single characters in code-point order, then those that carry `</w>`, then each
merge as it is born. Of equally frequent pairs the one with the smaller left number wins, then the smaller right one.
"""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import pairwise

Pair = tuple[str, str]
END = "</w>"
# Every byte has a visible sign: printable Latin-1 stands for itself, the other bytes move up beyond U+0100.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
SIGNS = {byte: chr(byte) for byte in _SHOWN}
SIGNS |= {byte: chr(256 + i) for i, byte in enumerate(sorted(set(range(256)) - set(_SHOWN)))}
# English endings; a run of letters, of digits, of signs, each with the space before it; other white space.
_BYTE_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def characters(word: str) -> list[str]:
    """The characters of a word, the last one marked: characters("low") == ["l", "o", "w</w>"]."""
    return [*word[:-1], word[-1] + END]


def byte_signs(word: str) -> list[str]:
    """The UTF-8 bytes of a word as visible signs: byte_signs(" 好") == ["Ġ", "å", "¥", "½"]."""
    return [SIGNS[byte] for byte in word.encode()]


def byte_words(text: str) -> list[str]:
    """A text cut where no merge may cross: byte_words("I've 2 cats") == ["I", "'ve", " 2", " cats"]."""
    return _BYTE_WORD.findall(text)


class Corpus:
    """Each different word once, as symbols; how often two neighbours meet is kept true while merging."""

    def __init__(self, words: Mapping[str, int], split: Callable[[str], list[str]]):
        self.texts, self.times = [split(word) for word in words], list(words.values())
        self.counts: Counter[Pair] = Counter()
        self.where: dict[Pair, set[int]] = defaultdict(set)
        for i, text in enumerate(self.texts):
            for pair in pairwise(text):
                self.counts[pair] += self.times[i]
                self.where[pair].add(i)

    def merge(self, pair: Pair) -> set[Pair]:
        """Rewrite every word that holds the pair; gives the pairs that are born by it."""
        born = set()
        for i in self.where.pop(pair):
            for neighbours, change in merge(self.texts[i], pair):
                self.counts[neighbours] += change * self.times[i]
                if change > 0:
                    self.where[neighbours].add(i)
                    born.add(neighbours)
        return {pair for pair in born if self.counts[pair] > 0}


def learn(words: Mapping[str, int], n_merges: int, split: Callable[[str], list[str]] = characters) -> list[Pair]:
    """The first `n_merges` merges, most frequent pair first.

    >>> learn({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 3)
    [('e', 's'), ('es', 't</w>'), ('l', 'o')]
    """
    corpus, merges = Corpus(words, split), list[Pair]()
    counts, number = corpus.counts, {symbol: n for n, symbol in enumerate(alphabet(corpus.texts))}

    def entry(pair: Pair) -> tuple[int, int, int, Pair]:
        return -counts[pair], number[pair[0]], number[pair[1]], pair

    queue = sorted(entry(pair) for pair in counts)  # a sorted list is a heap
    while queue and len(merges) < n_merges:
        waiting, _, _, pair = heapq.heappop(queue)
        if counts[pair] == -waiting:
            merges.append(pair)
            number.setdefault(pair[0] + pair[1], len(number))
            for new in corpus.merge(pair):
                heapq.heappush(queue, entry(new))
        elif counts[pair] > 0:  # it has lost neighbours while it waited: back into the queue with its true count
            heapq.heappush(queue, entry(pair))
    return merges


def alphabet(texts: Iterable[list[str]]) -> list[str]:
    """All symbols in the order that decides ties: alphabet([["b", "a</w>"], ["c</w>"]]) == ["b", "a</w>", "c</w>"]."""
    return sorted({symbol for text in texts for symbol in text}, key=lambda symbol: (len(symbol), symbol))


def merge(text: list[str], pair: Pair) -> list[tuple[Pair, int]]:
    """Every `pair` in `text` becomes one symbol, left to right; tells which neighbours went (-1) and came (+1)."""
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
    """The merges replayed in order: apply(characters("lows"), [("l", "o")]) == ["lo", "w", "s</w>"]."""
    text, present = list(text), set(text)
    for a, b in merges:
        if a in present and b in present:
            merge(text, (a, b))
            present.add(a + b)
    return text
