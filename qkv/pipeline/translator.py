"""The translator: text -> segments -> ids -> search -> ids -> text, in the order of the texts.

A backend does the search: torch, or CTranslate2, with which torch is never imported. A text's
translation does not depend on the texts beside it. Explained in docs/translation.md.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from qkv.errors import QkvError
from qkv.generate.backend import Hypothesis, SearchBackend, torch_model
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.text.sentences import join_sentences, split_sentences, split_to_fit
from qkv.text.special_tokens import (
    NOT_STORED,
    SpecialTokenIds,
    decoder_start_id,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer
from qkv.text.words import word_spans

if TYPE_CHECKING:
    from torch import Tensor

    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.generate.alignment import Link
    from qkv.model.guided import AlignmentHead
    from qkv.model.transformer import Transformer

log = logging.getLogger(__name__)

LONG_LINE_TOKENS = 100  # a longer line is translated sentence by sentence

Progress = Callable[[int, int], None]  # segments done, segments in all


class Segment(NamedTuple):
    """What one search translates: a line, a sentence of a long line, or a part of a sentence."""

    text: str
    ids: list[int]  # without special tokens


@dataclass(frozen=True)
class Translation:
    """A translation, its score (log-probability / length penalty), tokens and word alignment."""

    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)
    alignment: "list[Link] | None" = None  # None: not asked for


class Translator:
    """translator("我爱机器学习") == "i love machine learning"; lists give lists."""

    def __init__(
        self,
        backend: SearchBackend,
        source: Tokenizer,
        target: Tokenizer,
        stored: SpecialTokenIds = NOT_STORED,
        alignment: "AlignmentHead | None" = None,
    ):
        """`stored` and `alignment` are saved beside the model: see from_model."""
        self.backend, self.source, self.target = backend, source, target
        self.stored, self.alignment = stored, alignment
        self.bos, self.eos, self.pad = backend.bos, backend.eos, backend.pad
        self.template, self.target_template = (
            translation_template(source),
            translation_template(target),
        )
        self.limit = backend.max_len - self.template.size  # source tokens beside the special ones

    @classmethod
    def from_model(
        cls,
        model: "Transformer",
        source: Tokenizer,
        target: Tokenizer,
        *,
        int8: bool = False,
        stored: SpecialTokenIds = NOT_STORED,
        alignment: "AlignmentHead | None" = None,
    ) -> "Translator":
        """The translator of a torch model.

        Args:
            model: with an encoder and a causal decoder.
            source, target: the tokenizers of the encoder and the decoder.
            int8: quantize the matrices.
            stored: special token ids that an imported folder names; only start_id matters here.
            alignment: the cross-attention head that guided alignment has trained, if any.
        """
        from qkv.generate.torch_backend import TorchSearch

        if source.eos_id is None or target.eos_id is None or target.pad_id is None:
            raise QkvError(
                _("tokenizer"), _("it has no <eos> or no <pad>"), _("a translator needs both")
            )
        start, pad = decoder_start_id(target, stored), target.pad_id
        bos = pad if start is None else start
        backend = TorchSearch(model, bos, target.eos_id, pad, int8)
        return cls(backend, source, target, stored, alignment)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", int8: bool = False) -> "Translator":
        """The translator in a model folder, ours or Hugging Face's."""
        from qkv.checkpoint.load import load_folder

        return cls.of(load_folder(folder, device), folder, int8)

    @classmethod
    def load_ctranslate2(cls, folder: str | Path, device: str = "cpu") -> "Translator":
        """The translator in a folder that `qkv export --to ctranslate2` wrote."""
        from qkv.checkpoint.ctranslate2.folder import read_tokenizers
        from qkv.generate.ctranslate2_translator import CTranslate2Search

        return cls(CTranslate2Search(Path(folder), device), *read_tokenizers(Path(folder)))

    @classmethod
    def of(cls, loaded: "LoadedModel", folder: str | Path, int8: bool = False) -> "Translator":
        """The translator that a loaded folder holds."""
        spec, source, target = (
            loaded.model.spec,
            loaded.tokenizer("source"),
            loaded.tokenizer("target"),
        )
        if spec.encoder is None or spec.decoder is None or spec.decoder.sees != "past":
            right = _("a translator has an encoder and a decoder that sees the past")
            raise QkvError(folder, _("not a translator"), right)
        if source is None or target is None:
            wrong = _("no tokenizer.json")
            raise QkvError(folder, wrong, _("is the copy complete?"))
        return cls.from_model(
            loaded.model,
            source,
            target,
            int8=int8,
            stored=loaded.generation,
            alignment=loaded.alignment,
        )

    def save(self, folder: str | Path) -> None:
        """Write a folder that `qkv.load` reads."""
        from qkv.checkpoint.folder import save_model
        from qkv.checkpoint.loaded_model import stored_files

        tokenizers = {"source": self.source, "target": self.target}
        if self.source.fingerprint == self.target.fingerprint:
            tokenizers = {"tokenizer": self.target}
        files = stored_files(self.stored, alignment=self.alignment)
        save_model(folder, self.model, tokenizers, files)

    @property
    def model(self) -> "Transformer":
        """The torch model; an error if CTranslate2 runs it."""
        return torch_model(self.backend)

    # ── Text to text ─────────────────────────────────────────────────────────────────────────
    @overload
    def __call__(self, texts: str, **settings: Any) -> str: ...
    @overload
    def __call__(self, texts: Sequence[str], **settings: Any) -> list[str]: ...
    def __call__(self, texts: str | Sequence[str], **settings: Any) -> str | list[str]:
        """The best translation of each text; `settings` are fields of TranslationConfig."""
        if isinstance(texts, str):
            return self([texts], **settings)[0]
        return [best[0].text for best in self.translate(texts, **{"details": False, **settings})]

    def translate(
        self,
        texts: Sequence[str],
        config: TranslationConfig | None = None,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The n_best translations of each text, best first.

        Args:
            texts: each may have several lines, which stay lines.
            config: how to search; by default beam search as in TranslationConfig.
            progress: called after each batch with the number of segments done and of all segments.
            settings: fields that replace those of `config`, such as alignment=True.
        """
        config = replace(config, **settings) if config else TranslationConfig(**settings)
        if config.alignment and self.backend.model is None:
            raise no_attention()
        texts_in_lines = [text.split("\n") for text in texts]
        by_line = self.segment([line for lines in texts_in_lines for line in lines])
        segments = [segment for line in by_line for segment in line]
        hypotheses = iter(self._search(segments, config, progress))
        found = iter([self._translations(one, next(hypotheses), config) for one in segments])
        lines = iter([joined(islice(found, len(line)), join_sentences, config) for line in by_line])
        return [joined(islice(lines, len(text)), "\n".join, config) for text in texts_in_lines]

    def segment(self, lines: list[str]) -> list[list[Segment]]:
        """The tokenized segments of each line: the line itself, or if it is long its sentences."""
        lines = [line.strip() for line in lines]
        longest = min(LONG_LINE_TOKENS, self.limit)
        return [
            self._sentences(whole) if len(whole.ids) > longest else [whole] if whole.text else []
            for whole in map(Segment, lines, self.source.encode_batch(lines))
        ]

    def _sentences(self, line: Segment) -> list[Segment]:
        """The sentences of a long line; one beyond the model's limit in parts, with a warning."""
        known, found = {line.text: line.ids}, list[str]()

        def encode(text: str) -> list[int]:
            if text not in known:  # what was measured is not tokenized again
                known[text] = self.source.encode(text)
            return known[text]

        for sentence in map(str.strip, split_sentences(line.text)):
            parts = split_to_fit(sentence, lambda part: len(encode(part)), self.limit)
            if len(parts) > 1:
                log.warning(_too_long(sentence, len(encode(sentence)), self.limit, len(parts)))
            found += filter(None, map(str.strip, parts))
        return [Segment(part, encode(part)) for part in found]

    def _search(
        self, segments: list[Segment], config: TranslationConfig, progress: Progress | None
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each segment; segments of similar length are searched together."""
        before, after = self.template.before, self.template.after
        rows = [[*before, *segment.ids, *after] for segment in segments]
        order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))
        found: dict[int, list[Hypothesis]] = {}
        for start in range(0, len(order), config.batch_size):
            batch = order[start : start + config.batch_size]
            hypotheses = self.backend.search([rows[n] for n in batch], config)
            found.update(zip(batch, hypotheses, strict=True))
            if progress is not None:
                progress(len(found), len(rows))
        return [found[n] for n in range(len(rows))]

    def _translations(
        self, segment: Segment, hypotheses: list[Hypothesis], config: TranslationConfig
    ) -> list[Translation]:
        translations = []
        for hypothesis in hypotheses[: config.n_best]:
            ids = [id for id in hypothesis.ids if id != self.eos]
            text = " ".join(self.target.decode(ids).splitlines()).strip()  # a line stays one line
            translations.append(
                Translation(
                    text,
                    hypothesis.score,
                    self.target.tokens_for_people(ids) if config.details else [],
                    self.links(segment.text, ids) if config.alignment else None,
                )
            )
        return translations

    # ── Given pairs: ids, and word alignment with the torch model ────────────────────────────
    def encode_source(self, text: str) -> list[int]:
        """The encoder input ids: the text with <eos>, or what its tokenizer adds."""
        return self.template.around(self.source.encode(text))

    def encode_target(self, text: str) -> list[int]:
        """The ids of a reference translation: <bos>, the text, <eos>."""
        return [self.bos, *self.target_template.around(self.target.encode(text))]

    def links(self, text: str, ids: Sequence[int]) -> "list[Link]":
        """The word alignment of a translation, given as its ids without <eos>."""
        from qkv.generate.alignment import align, source_units, target_units

        words = source_units(self.source, text), target_units(self.target, ids)
        return align(self.alignment_weights(text, ids), *words, null=self.alignment is not None)

    def alignment_weights(self, text: str, ids: Sequence[int]) -> "Tensor":
        """Attention weights (target tokens, source tokens and <eos>); row i predicts token i."""
        from qkv.generate.alignment import cross_weights

        source_ids, begun = self.encode_source(text), [self.bos, *ids[:-1]]
        weights = cross_weights(self.model, source_ids, begun, self.alignment)
        return weights[:, len(self.template.before) :]

    def span_links(self, source: str, target: str) -> list[tuple[int, int, int]]:
        """The alignment of a pair: (start, end, n) links source[start:end] with target word n."""
        from qkv.generate.alignment import linked_words, source_units, unit_spans

        weights = self.alignment_weights(source, self.target.encode(target))
        words, units = source_units(self.source, source), source_units(self.target, target)
        spans, places = unit_spans(source, words), unit_spans(target, units)
        found = linked_words(weights, words, units, null=self.alignment is not None)
        return [
            (*spans[place], number)
            for unit, place, _ in found
            for number, (start, end) in enumerate(word_spans(target))
            if places[unit][0] < end and start < places[unit][1]
        ]


def joined(
    found: Iterable[list[Translation]], join: Callable[[list[str]], str], config: TranslationConfig
) -> list[Translation]:
    """The n-th translation of several parts joins the n-th of each part; scores add up."""
    parts = list(found)
    if not parts:
        return [Translation("", alignment=[] if config.alignment else None)]
    if len(parts) == 1:
        return parts[0]
    ranks = range(max(map(len, parts)))  # an empty line has one translation, which every rank takes
    return [
        Translation(
            join([one.text for one in row]),
            sum(one.score for one in row),
            [token for one in row for token in one.tokens],
            [link for one in row for link in one.alignment or []] if config.alignment else None,
        )
        for row in ([part[min(rank, len(part) - 1)] for part in parts] for rank in ranks)
    ]


def _too_long(sentence: str, size: int, limit: int, parts: int) -> str:
    shown = sentence if len(sentence) <= 30 else f"{sentence[:30]}…"
    return _(
        "'{shown}': {size:,} tokens, the model reads {limit:,}; translated in {parts} parts",
        shown=shown,
        size=size,
        limit=limit,
        parts=parts,
    )


def no_attention() -> QkvError:
    return QkvError(
        "alignment",
        _("CTranslate2 does not show where each head looks"),
        _("use --engine torch with the folder it was exported from"),
    )
