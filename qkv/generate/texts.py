"""From texts to translated texts, whoever searches: settings, parts, batches, and joining what was found.

In: texts. Out: translations, in the order of the texts. It knows no torch: the torch model (pipeline/translator.py) and CTranslate2
(generate/ctranslate2_translator.py) each bring their own search. Told in docs/translation.md.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from qkv.errors import QkvError
from qkv.language import say
from qkv.text.sentences import join_sentences, split_sentences, split_to_fit
from qkv.text.special_tokens import Template
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.generate.alignment import Link

log = logging.getLogger(__name__)

LONG = 100  # tokens: a longer line is translated sentence by sentence

Progress = Callable[[int, int], None]  # sentences done, sentences in all


class Hypothesis(NamedTuple):
    """A whole translation: without <bos>, with <eos> if it ended; score = log_prob / length penalty."""

    ids: list[int]
    log_prob: float
    score: float


@dataclass(frozen=True)
class Settings:
    """How to search; beam 4 and length penalty 0.6 are the paper's, a beam of 1 is greedy and the fastest."""

    beam_size: int = 4
    length_penalty: float = 0.6
    n_best: int = 1
    max_length: int | None = None  # tokens of a translated sentence; None: twice its source and 20 more
    batch_size: int = 32           # sentences searched together
    details: bool = True           # scores of a beam of 1 and tokens cost a little more time

    def __post_init__(self) -> None:
        for name in ("beam_size", "n_best", "max_length", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise QkvError(name, say(f"{value} is too small", f"{value} 太小"), say("use 1 or more", "请用 1 或更大的数"))
        if not 0 <= self.length_penalty <= 20:  # a text of a thousand tokens to the power of some hundred is no number any more
            wrong = say(f"{self.length_penalty} is no penalty", f"{self.length_penalty} 不能作为惩罚")
            raise QkvError("length_penalty", wrong, say("use 0 to 20; the paper has 0.6", "请用 0 到 20 之间的数；论文用 0.6"))
        if self.n_best > self.beam_size:
            wrong = say(f"{self.n_best} of a beam of {self.beam_size}", f"束宽为 {self.beam_size}，却要 {self.n_best} 个")
            raise QkvError("n_best", wrong, say("raise beam_size or lower n_best", "请增大 beam_size 或减小 n_best"))

    def penalty(self, length: int) -> float:
        """((5 + length) / 6)^alpha, by which a log-probability is divided so that long sentences have a chance."""
        return ((5 + length) / 6) ** self.length_penalty

    def longest(self, n_source: int, limit: int) -> int:
        """Tokens, <eos> included, that the translation of `n_source` of them may have; the model counts to `limit`."""
        return min(2 * n_source + 20 if self.max_length is None else self.max_length, limit)


@dataclass(frozen=True)
class Translation:
    """A translation, its score (log-probability / length penalty), its tokens, and where its words come from."""

    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)
    alignment: "list[Link] | None" = None  # None: not asked for


class TextTranslator(ABC):
    """translator("我爱机器学习") == "i love machine learning"; lists give lists."""

    source: Tokenizer
    target: Tokenizer
    frame: Template  # around each source
    eos: int
    limit: int    # source tokens that the model reads beside the frame

    @overload
    def __call__(self, texts: str, **settings: Any) -> str: ...
    @overload
    def __call__(self, texts: Sequence[str], **settings: Any) -> list[str]: ...
    def __call__(self, texts: str | Sequence[str], **settings: Any) -> str | list[str]:
        """The best translation of each text; `settings` are those of Settings, such as beam_size=1."""
        if isinstance(texts, str):
            return self([texts], **settings)[0]
        return [best[0].text for best in self.translate(texts, **{"details": False, **settings})]

    def translate(
        self, texts: Sequence[str], alignment: bool = False, progress: Progress | None = None, **settings: Any
    ) -> list[list[Translation]]:
        """The n_best translations of each text, best first; `progress` hears how many sentences are done of how many."""
        chosen = Settings(**settings)
        split = [[self.parts(line) for line in text.split("\n")] for text in texts]
        parts = [part for text in split for line in text for part in line]
        found = iter(self._search(parts, chosen, progress))

        def of_line(line: list[str]) -> list[Translation]:
            each = [self._translations(part, next(found)[: chosen.n_best], alignment, chosen.details) for part in line]
            return joined(each, join_sentences, alignment)
        return [joined([of_line(line) for line in text], "\n".join, alignment) for text in split]

    def parts(self, line: str) -> list[str]:
        """What is translated in one go: a line; of a long one each sentence; of a too long one parts, with a warning."""
        found = []
        whole = self._size(line) <= min(LONG, self.limit)
        for sentence in [line] if whole else split_sentences(line):
            small = [sentence] if whole else split_to_fit(sentence.strip(), self._size, self.limit)
            if len(small) > 1:
                log.warning(_too_long(sentence.strip(), self._size(sentence), self.limit, len(small)))
            found += [part.strip() for part in small if part.strip()]
        return found

    @abstractmethod
    def search_batch(self, rows: list[list[int]], settings: Settings) -> list[list[Hypothesis]]:
        """The hypotheses of each source, given as the ids the encoder reads; best first."""

    @abstractmethod
    def links(self, text: str, ids: Sequence[int]) -> "list[Link]":
        """Where the words of a translation, given as its ids without <eos>, come from."""

    def _size(self, text: str) -> int:
        return len(self.source.encode(text))

    def _search(self, parts: list[str], settings: Settings, progress: Progress | None) -> list[list[Hypothesis]]:
        """The hypotheses of each part; parts of about one length are searched together."""
        ids = [self.frame.around(one) for one in self.source.encode_batch(parts)]
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))
        found: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(order), settings.batch_size):
            some = order[start : start + settings.batch_size]
            found.update(zip(some, self.search_batch([ids[n] for n in some], settings), strict=True))
            if progress is not None:
                progress(len(found), len(ids))
        return [found[n] for n in range(len(ids))]

    def _translations(self, part: str, found: list[Hypothesis], alignment: bool, details: bool) -> list[Translation]:
        said = [[token for token in one.ids if token != self.eos] for one in found]
        return [Translation(
            " ".join(self.target.decode(ids).splitlines()).strip(), one.score,  # a line stays one line
            self.target.tokens_for_people(ids) if details else [],
            self.links(part, ids) if alignment else None,
        ) for one, ids in zip(found, said, strict=True)]


def joined(parts: list[list[Translation]], join: Callable[[Sequence[str]], str], alignment: bool) -> list[Translation]:
    """Of a text in several parts, the n-th translation is made of the n-th of each, and scores add up."""
    if not parts:
        return [Translation("", alignment=[] if alignment else None)]
    ranks = range(max(map(len, parts)))  # an empty line has one translation only, and stands in each
    rows = [[part[min(rank, len(part) - 1)] for part in parts] for rank in ranks]
    return [row[0] if len(row) == 1 else Translation(
        join([one.text for one in row]), sum(one.score for one in row),
        [token for one in row for token in one.tokens],
        [link for one in row for link in one.alignment or []] if alignment else None,
    ) for row in rows]


def _too_long(sentence: str, size: int, limit: int, parts: int) -> str:
    shown = sentence if len(sentence) <= 30 else f"{sentence[:30]}…"
    return say(f"'{shown}': {size:,} tokens, the model reads {limit:,}; translated in {parts} parts",
               f"「{shown}」有 {size:,} 个词元，模型最多读 {limit:,} 个；已分成 {parts} 段翻译")
