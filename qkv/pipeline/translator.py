"""The translator: text -> segments -> ids -> beam search -> ids -> text.

A backend runs the search: torch, or CTranslate2, which does not import torch. Translations are
batch-invariant. See docs/guides/translation.md.
"""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from qkv.arguments import with_settings
from qkv.errors import QkvError
from qkv.generate.backend import SearchBackend
from qkv.generate.config import TranslationConfig
from qkv.messages import _
from qkv.pipeline.segments import (
    LONG_LINE_TOKENS,
    Progress,
    Segment,
    Translation,
    check_sources,
    decode_hypotheses,
    join_translations,
    search_segments,
    split_line,
)
from qkv.pipeline.text_pipeline import TextPipeline
from qkv.text.sentences import join_sentences
from qkv.text.special_tokens import (
    NOT_STORED,
    SpecialTokenIds,
    decoder_start_id,
    translation_template,
)
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import LoadedModel
    from qkv.generate.alignment import Link
    from qkv.model.guided import AlignmentHead
    from qkv.model.transformer import Transformer

__all__ = ["Translator"]

TEXT_ONLY = TranslationConfig(details=False)


class Translator(TextPipeline):
    """Translation with an encoder-decoder model.

    Example:
        translator = qkv.load("runs/zh-en", task="translate")
        translator("我爱机器学习")                        # 'i love machine learning'
        translator(["你好", "谢谢"], beam_size=1)         # ['hello', 'thank you']
        translator.translate(["你好"], n_best=3)[0][2].score

    Attributes:
        backend: Runs the search.
        source, target: The tokenizers of the encoder and the decoder.
        bos, eos, pad: Special token ids of the decoder.
        template, target_template: The special tokens before and after source and target texts.
        max_source_len: The maximum number of source tokens, without special tokens.
    """

    backend: SearchBackend

    def __init__(
        self,
        backend: SearchBackend,
        source: Tokenizer,
        target: Tokenizer,
        stored: SpecialTokenIds = NOT_STORED,
        alignment: "AlignmentHead | None" = None,
    ):
        """Make a translator; see from_model and load.

        Args:
            backend: Runs the search.
            source: The tokenizer of the encoder.
            target: The tokenizer of the decoder.
            stored: Special token ids saved with the model.
            alignment: The cross-attention head trained by guided alignment, if any.
        """
        self.backend, self.source, self.target = backend, source, target
        self.stored, self.alignment = stored, alignment
        self.bos, self.eos, self.pad = backend.bos, backend.eos, backend.pad
        self.template = translation_template(source)
        self.target_template = translation_template(target)
        self.max_source_len = backend.max_len - self.template.size

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
        """Make the translator of a torch model.

        Args:
            model: An encoder-decoder model.
            source: The tokenizer of the encoder.
            target: The tokenizer of the decoder.
            int8: Whether to quantize the weight matrices to int8.
            stored: Special token ids of an imported folder; only start_id is used.
            alignment: The cross-attention head trained by guided alignment, if any.

        Raises:
            QkvError: A tokenizer has no <eos> or no <pad>.
        """
        from qkv.generate.torch_backend import TorchSearch

        if source.eos_id is None or target.eos_id is None or target.pad_id is None:
            wrong = _("no <eos> or no <pad>")
            raise QkvError(_("tokenizer"), wrong, _("a translation model needs both"))
        start, pad = decoder_start_id(target, stored), target.pad_id
        backend = TorchSearch(model, pad if start is None else start, target.eos_id, pad, int8)
        return cls(backend, source, target, stored, alignment)

    @classmethod
    def load_ctranslate2(cls, folder: str | Path, device: str = "cpu") -> "Translator":
        """Load the translator of an exported folder, without importing torch.

        Args:
            folder: A folder written by `qkv export --to ctranslate2`.
            device: "cpu" or "cuda".
        """
        from qkv.checkpoint.ctranslate2.folder import read_tokenizers
        from qkv.generate.ctranslate2_translator import CTranslate2Search

        return cls(CTranslate2Search(Path(folder), device), *read_tokenizers(Path(folder)))

    @classmethod
    def of(cls, loaded: "LoadedModel", folder: str | Path, int8: bool = False) -> "Translator":
        spec = loaded.model.spec
        source, target = loaded.tokenizer("source"), loaded.tokenizer("target")
        if spec.encoder is None or spec.decoder is None or not spec.decoder.causal:
            right = _("use an encoder-decoder model with a causal decoder")
            raise QkvError(folder, _("not a translation model"), right)
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
        """Write a folder that `qkv.load` reads.

        Args:
            folder: The folder; it is created.
        """
        from qkv.checkpoint.folder import save_model
        from qkv.checkpoint.loaded_model import stored_files

        tokenizers = {"source": self.source, "target": self.target}
        if self.source.fingerprint == self.target.fingerprint:
            tokenizers = {"tokenizer": self.target}
        files = stored_files(self.stored, alignment=self.alignment)
        save_model(folder, self.model, tokenizers, files)

    # ── Text to text ─────────────────────────────────────────────────────────────────────────
    @overload
    def __call__(self, texts: str, **settings: Any) -> str: ...
    @overload
    def __call__(self, texts: Sequence[str], **settings: Any) -> list[str]: ...
    def __call__(self, texts: str | Sequence[str], **settings: Any) -> str | list[str]:
        """Return the best translation of a text, or of each text.

        Args:
            texts: One text or several.
            settings: Fields of TranslationConfig, such as beam_size=1.

        Returns:
            The translation of a str, or a list with the translation of each text.

        Raises:
            QkvError: A text is not a str, or a setting is unknown or out of range.
        """
        if isinstance(texts, str):
            return self([texts], **settings)[0]
        return [best[0].text for best in self.translate(texts, TEXT_ONLY, **settings)]

    def translate(
        self,
        texts: Sequence[str],
        config: TranslationConfig | None = None,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """Return the n_best translations of each text, best first.

        Args:
            texts: The texts; line breaks are kept.
            config: The search settings; by default beam search as in TranslationConfig.
            progress: Called after each batch with the number of segments done and in total.
            settings: Fields that override those of `config`, such as alignment=True.

        Returns:
            A list of `n_best` translations for each text.
        """
        texts = check_sources(texts)
        config = with_settings(TranslationConfig, config, settings)
        if config.alignment and self.backend.model is None:
            right = _("use --engine torch with the folder it was exported from")
            raise QkvError("alignment", _("CTranslate2 does not return attention weights"), right)
        texts_in_lines = [text.split("\n") for text in texts]
        by_line = self.segment([line for lines in texts_in_lines for line in lines])
        segments = [segment for line in by_line for segment in line]
        hypotheses = iter(search_segments(self, segments, config, progress))
        parts = iter(
            [decode_hypotheses(self, segment, next(hypotheses), config) for segment in segments]
        )
        lines = iter(
            [
                join_translations(islice(parts, len(line)), join_sentences, config)
                for line in by_line
            ]
        )
        return [
            join_translations(islice(lines, len(text)), "\n".join, config)
            for text in texts_in_lines
        ]

    def segment(self, lines: list[str]) -> list[list[Segment]]:
        """Tokenize lines into segments: each line, or the sentences of a long line.

        Args:
            lines: Lines of text.

        Returns:
            The segments of each line; none of an empty line.
        """
        lines = list(map(str.strip, lines))
        long, segments = min(LONG_LINE_TOKENS, self.max_source_len), []
        for line in map(Segment, lines, self.source.encode_batch(lines)):
            if len(line.ids) > long:
                segments.append(split_line(line, self.source, self.max_source_len))
            else:
                segments.append([line] if line.text else [])
        return segments

    def links(self, text: str, ids: Sequence[int]) -> "list[Link]":
        """Align a translation with its source by cross-attention weights.

        Args:
            text: The source.
            ids: The tokens of the translation, without <eos>.

        Returns:
            A link for each target word.
        """
        from qkv.pipeline.word_alignment import links

        return links(self, text, ids)

    def span_links(self, source: str, target: str) -> list[tuple[int, int, int]]:
        """Align the words of a given pair.

        Args:
            source: The source.
            target: Its translation.

        Returns:
            A (start, end, n) for each link of source[start:end] with target word n.
        """
        from qkv.pipeline.word_alignment import span_links

        return span_links(self, source, target)

    # ── Ids of given pairs ───────────────────────────────────────────────────────────────────
    def encode_source(self, text: str) -> list[int]:
        """Encode a source text, with its special tokens.

        Args:
            text: The text.

        Returns:
            The encoder's input ids.
        """
        return self.template.around(self.source.encode(text))

    def encode_target(self, text: str) -> list[int]:
        """Encode a reference translation: <bos>, the text, <eos>.

        Args:
            text: The translation.

        Returns:
            The decoder's ids: input and, shifted by one, target.
        """
        return [self.bos, *self.target_template.around(self.target.encode(text))]
