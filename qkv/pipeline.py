"""Text in, text out: tokenizing, batching, searching and joining in one call.

In: a model folder, then texts. Out: translations, in the order of the texts, each the same alone and in company.
Told in docs/translation.md.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from qkv.checkpoint.folder import LoadedModel, load_model, save_model
from qkv.errors import QkvError
from qkv.generate.alignment import Link, align, cross_weights, source_units, target_units
from qkv.generate.beam import BeamRules, Hypothesis, beam_search
from qkv.generate.decode import forced_log_probs, greedy
from qkv.language import say
from qkv.model.transformer import Transformer
from qkv.text.sentences import join_sentences, split_sentences, split_to_fit
from qkv.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

LONG = 100  # tokens: a longer line is translated sentence by sentence

Progress = Callable[[int, int], None]  # sentences done, sentences in all


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
        if not 0 <= self.length_penalty < float("inf"):
            wrong = say(f"{self.length_penalty} is no penalty", f"{self.length_penalty} 不能作为惩罚")
            raise QkvError("length_penalty", wrong, say("use 0 or more; the paper has 0.6", "请用不小于 0 的数；论文用 0.6"))
        if self.n_best > self.beam_size:
            wrong = say(f"{self.n_best} of a beam of {self.beam_size}", f"束宽为 {self.beam_size}，却要 {self.n_best} 个")
            raise QkvError("n_best", wrong, say("raise beam_size or lower n_best", "请增大 beam_size 或减小 n_best"))


@dataclass(frozen=True)
class Translation:
    """A translation, its score (log-probability / length penalty), its tokens, and where its words come from."""

    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)
    alignment: list[Link] | None = None  # None: not asked for


class Translator:
    """translator("我爱机器学习") == "i love machine learning"; lists give lists."""

    def __init__(self, model: Transformer, source: Tokenizer, target: Tokenizer):
        self.model, self.source, self.target = model.eval(), source, target
        eos = [source.eos_id, target.eos_id]
        if None in eos or target.pad_id is None:
            raise QkvError(say("tokenizer", "分词器"), say("it has no <eos> or no <pad>", "缺少 <eos> 或 <pad>"),
                           say("a translator needs both", "翻译模型两者都需要"))
        self.source_eos, self.eos, self.pad = int(eos[0] or 0), int(eos[1] or 0), target.pad_id
        self.bos = self.pad if target.bos_id is None else target.bos_id  # Marian's translations begin with <pad>
        self.limit = model.spec.max_len - 1                              # <eos> needs a place too

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Translator":
        """The translator in a model folder."""
        return cls.of(load_model(folder, check_device(device)), folder)

    @classmethod
    def of(cls, loaded: LoadedModel, folder: str | Path) -> "Translator":
        """The translator that a loaded folder holds."""
        spec, names = loaded.model.spec, loaded.tokenizers
        if spec.encoder is None or spec.decoder is None or spec.decoder.sees != "past":
            raise QkvError(folder, say("not a translator", "不是翻译模型"), say(
                "a translator has an encoder and a decoder that sees the past", "翻译模型要有编码器，以及只看过去的解码器"))
        if not ("tokenizer" in names or {"source", "target"} <= names.keys()):
            raise QkvError(folder, say("no tokenizer.json", "没有 tokenizer.json"), say("is the copy complete?", "复制完整了吗？"))
        both = names.get("tokenizer")
        return cls(loaded.model, both or names["source"], both or names["target"])

    def save(self, folder: str | Path) -> None:
        """A folder that `qkv.load` reads."""
        shared = self.source.fingerprint == self.target.fingerprint
        save_model(folder, self.model, {"tokenizer": self.target} if shared
                   else {"source": self.source, "target": self.target})

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

    def encode_source(self, text: str) -> list[int]:
        """The ids the encoder reads: the text and <eos>."""
        return [*self.source.encode(text), self.source_eos]

    def encode_target(self, text: str) -> list[int]:
        """The ids of a right translation: <bos>, the text, <eos>."""
        return [self.bos, *self.target.encode(text), self.eos]

    def _size(self, text: str) -> int:
        return len(self.source.encode(text))

    def _search(self, parts: list[str], settings: Settings, progress: Progress | None) -> list[list[Hypothesis]]:
        """The hypotheses of each part; parts of about one length are searched together."""
        ids = [[*one, self.source_eos] for one in self.source.encode_batch(parts)]
        order = sorted(range(len(ids)), key=lambda n: -len(ids[n]))
        found: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(order), settings.batch_size):
            some = order[start : start + settings.batch_size]
            found.update(zip(some, self._search_batch([ids[n] for n in some], settings), strict=True))
            if progress is not None:
                progress(len(found), len(ids))
        return [found[n] for n in range(len(ids))]

    def _search_batch(self, rows: list[list[int]], settings: Settings) -> list[list[Hypothesis]]:
        source, real = self._side_by_side(rows)
        limits = (2 * real.sum(dim=1) + 20).clamp(max=self.limit + 1)
        if settings.max_length is not None:
            limits = torch.full_like(limits, min(settings.max_length, self.limit + 1))
        rules = BeamRules(self.bos, self.eos, self.pad, settings.beam_size, settings.length_penalty)
        if settings.beam_size > 1:
            return beam_search(self.model, source, real, rules, limits)
        said = greedy(self.model, source, real, bos_id=self.bos, eos_id=self.eos, pad_id=self.pad, max_len=limits)
        if not settings.details:
            return [[Hypothesis(ids, 0.0, 0.0)] for ids in said]
        sums = [sum(gains) for gains in forced_log_probs(self.model, source, real, said, self.bos)]
        return [[Hypothesis(ids, total, total / rules.penalty(len(ids)))] for ids, total in zip(said, sums, strict=True)]

    def _side_by_side(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids (batch, source), padded on the right, and which of them are real, on the model's device."""
        width, device = max(map(len, rows)), self.model.embed.weight.device
        pad = self.pad if self.source.pad_id is None else self.source.pad_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return ids, torch.arange(width, device=device) < lengths[:, None]

    def _translations(self, part: str, found: list[Hypothesis], alignment: bool, details: bool) -> list[Translation]:
        said = [[token for token in one.ids if token != self.eos] for one in found]
        return [Translation(
            " ".join(self.target.decode(ids).splitlines()).strip(), one.score,  # a line stays one line
            self.target.tokens_for_people(ids) if details else [],
            self.links(part, ids) if alignment else None,
        ) for one, ids in zip(found, said, strict=True)]

    def links(self, text: str, ids: Sequence[int]) -> list[Link]:
        """Where the words of a translation, given as its ids without <eos>, come from."""
        words = source_units(self.source, text), target_units(self.target, ids)
        return align(cross_weights(self.model, self.encode_source(text), [self.bos, *ids]), *words)


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


def load(folder: str | Path, device: str = "cpu") -> Translator:
    """What a model folder is for: an encoder with a decoder translates."""
    return Translator.load(folder, device)


def check_device(name: str) -> str:
    """The name, if this machine has such a device."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise QkvError("device", say(f"no '{name}' here", f"这里没有 '{name}'"), say("use cpu", "请用 cpu")) from None
    return name


def _too_long(sentence: str, size: int, limit: int, parts: int) -> str:
    shown = sentence if len(sentence) <= 30 else f"{sentence[:30]}…"
    return say(f"'{shown}': {size:,} tokens, the model reads {limit:,}; translated in {parts} parts",
               f"「{shown}」有 {size:,} 个词元，模型最多读 {limit:,} 个；已分成 {parts} 段翻译")
