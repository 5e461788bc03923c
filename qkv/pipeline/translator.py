"""The translator: tokenizing, batching, searching and joining in one call.

In: a model folder, then texts. Out: translations, in the order of the texts, each the same alone and in company.
Told in docs/translation.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.convert import ALIGNMENT, extras
from qkv.checkpoint.folder import LoadedModel, save_model
from qkv.engine.int8 import no_int8
from qkv.engine.packed_model import can_be_fast
from qkv.errors import QkvError
from qkv.generate.alignment import Link, align, cross_weights, linked_words, source_units, target_units, unit_spans
from qkv.generate.beam import BeamRules, beam_search
from qkv.generate.decode import forced_log_probs, greedy
from qkv.generate.texts import Hypothesis, Settings, TextTranslator
from qkv.language import say
from qkv.model.guided import AlignmentHead, alignment_head
from qkv.model.transformer import Transformer
from qkv.pipeline.opening import open_folder
from qkv.text.frame import pair_frame
from qkv.text.marks import start_mark
from qkv.text.tokenizer import Tokenizer
from qkv.text.words import word_spans


class Translator(TextTranslator):
    """translator("我爱机器学习") == "i love machine learning"; lists give lists."""

    def __init__(
        self, model: Transformer, source: Tokenizer, target: Tokenizer, int8: bool = False, marks: dict[str, Any] | None = None,
        alignment: AlignmentHead | None = None,
    ):
        """`marks` are the ids that begin and end texts, as an imported folder tells them; only start_id matters here.

        `alignment` is the head that guided alignment has trained, if one has been.
        """
        self.model, self.source, self.target, self.int8 = model.eval(), source, target, int8
        self.marks, self.alignment = marks or {}, alignment
        if int8 and not can_be_fast(model, int8):
            raise no_int8()
        if source.eos_id is None or target.eos_id is None or target.pad_id is None:
            raise QkvError(say("tokenizer", "分词器"), say("it has no <eos> or no <pad>", "缺少 <eos> 或 <pad>"),
                           say("a translator needs both", "翻译模型两者都需要"))
        self.frame, self.target_frame = pair_frame(source), pair_frame(target)
        self.eos, self.pad = target.eos_id, target.pad_id
        start = start_mark(target, self.marks)
        self.bos = self.pad if start is None else start
        self.limit = model.spec.max_len - self.frame.size  # <eos> needs a place too

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", int8: bool = False) -> "Translator":
        """The translator in a model folder, ours or Hugging Face's; `int8` makes its matrices small and fast."""
        return cls.of(open_folder(folder, device), folder, int8)

    @classmethod
    def of(cls, loaded: LoadedModel, folder: str | Path, int8: bool = False) -> "Translator":
        """The translator that a loaded folder holds."""
        spec, names = loaded.model.spec, loaded.tokenizers
        if spec.encoder is None or spec.decoder is None or spec.decoder.sees != "past":
            raise QkvError(folder, say("not a translator", "不是翻译模型"), say(
                "a translator has an encoder and a decoder that sees the past", "翻译模型要有编码器，以及只看过去的解码器"))
        if not ("tokenizer" in names or {"source", "target"} <= names.keys()):
            raise QkvError(folder, say("no tokenizer.json", "没有 tokenizer.json"), say("is the copy complete?", "复制完整了吗？"))
        both = names.get("tokenizer")
        guided = alignment_head(loaded.facts.get("alignment"), loaded.model.spec, Path(folder) / ALIGNMENT)
        return cls(loaded.model, both or names["source"], both or names["target"], int8, loaded.facts.get("generation"), guided)

    def save(self, folder: str | Path) -> None:
        """A folder that `qkv.load` reads."""
        shared = self.source.fingerprint == self.target.fingerprint
        save_model(folder, self.model, {"tokenizer": self.target} if shared
                   else {"source": self.source, "target": self.target},
                   extras(self.marks, alignment=self.alignment._asdict() if self.alignment else None))

    def encode_source(self, text: str) -> list[int]:
        """The ids the encoder reads: the text and <eos>, or what else its tokenizer puts around it."""
        return self.frame.around(self.source.encode(text))

    def encode_target(self, text: str) -> list[int]:
        """The ids of a right translation: <bos>, the text, <eos>."""
        return [self.bos, *self.target_frame.around(self.target.encode(text))]

    def search_batch(self, rows: list[list[int]], settings: Settings) -> list[list[Hypothesis]]:
        source, real = self._side_by_side(rows)
        limits = torch.tensor([settings.longest(len(row), self.model.spec.max_len) for row in rows], device=source.device)
        rules = BeamRules(self.bos, self.eos, self.pad, settings.beam_size, settings.length_penalty)
        if settings.beam_size > 1:
            return beam_search(self.model, source, real, rules, limits, self.int8)
        said = greedy(self.model, source, real, bos_id=self.bos, eos_id=self.eos, pad_id=self.pad, max_len=limits, int8=self.int8)
        if not settings.details:
            return [[Hypothesis(ids, 0.0, 0.0)] for ids in said]
        suppressed = [token for token in (self.bos, self.pad) if token != self.eos]
        sums = [sum(gains) for gains in forced_log_probs(self.model, source, real, said, self.bos, suppressed)]
        return [[Hypothesis(ids, total, total / rules.penalty(len(ids)))] for ids, total in zip(said, sums, strict=True)]

    def _side_by_side(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids (batch, source), padded on the right, and which of them are real, on the model's device."""
        width, device = max(map(len, rows)), self.model.embed.weight.device
        pad = self.pad if self.source.pad_id is None else self.source.pad_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], device=device)
        lengths = torch.tensor([len(row) for row in rows], device=device)
        return ids, torch.arange(width, device=device) < lengths[:, None]

    def links(self, text: str, ids: Sequence[int]) -> list[Link]:
        """Where the words of a translation, given as its ids without <eos>, come from."""
        words = source_units(self.source, text), target_units(self.target, ids)
        return align(self.alignment_weights(text, ids), *words, null=self.alignment is not None)

    def alignment_weights(self, text: str, ids: Sequence[int]) -> Tensor:
        """The attention weights that links are read from, (target tokens, source tokens and <eos>); row i predicts token i."""
        weights = cross_weights(self.model, self.encode_source(text), [self.bos, *ids[:-1]], self.alignment)
        return weights[:, len(self.frame.before) :]

    def span_links(self, source: str, target: str) -> list[tuple[int, int, int]]:
        """The alignment of a given translation: (start, end, word) links source[start:end] with a word of the target."""
        ids = self.target.encode(target)
        words, said = source_units(self.source, source), source_units(self.target, target)
        spans, places = unit_spans(source, words), unit_spans(target, said)
        found = linked_words(self.alignment_weights(source, ids), words, said, null=self.alignment is not None)
        return [(*spans[place], number) for unit, place, _ in found for number, (start, end) in enumerate(word_spans(target))
                if places[unit][0] < end and start < places[unit][1]]
