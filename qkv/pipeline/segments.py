"""Segments of a text, the units of a search: split, searched in batches, decoded, joined.

See docs/guides/translation.md.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from qkv.arguments import check_texts
from qkv.errors import QkvError
from qkv.generate.backend import Hypothesis
from qkv.generate.config import TranslationConfig
from qkv.limits import MAX_TEXT_CHARACTERS
from qkv.messages import _
from qkv.text.sentences import split_sentences, split_to_fit
from qkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from qkv.generate.alignment import Link
    from qkv.pipeline.translator import Translator

__all__ = ["Translation"]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # segments done, segments in total

LONG_LINE_TOKENS = 100  # longer lines are translated sentence by sentence


class Segment(NamedTuple):
    """The unit of a search: a line, a sentence of a long line, or a part of a sentence."""

    text: str
    ids: list[int]  # without special tokens


@dataclass(frozen=True)
class Translation:
    """A translation of a text, as returned by Translator.translate.

    >>> Translation("hello", -0.25).text
    'hello'

    Attributes:
        text: The translation.
        score: Its log-probability divided by the length penalty, summed over the sentences.
        tokens: Its tokens, readable; [] with details=False.
        alignment: The source word of each target word; None: not requested.
    """

    text: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list)
    alignment: "list[Link] | None" = None


def split_line(line: Segment, tokenizer: Tokenizer, max_tokens: int) -> list[Segment]:
    """Split a long line into sentences, and too long sentences into parts, with a warning."""
    encoded, texts = {line.text: line.ids}, list[str]()

    def encode(text: str) -> list[int]:
        if text not in encoded:
            encoded[text] = tokenizer.encode(text)
        return encoded[text]

    for sentence in map(str.strip, split_sentences(line.text)):
        parts = split_to_fit(sentence, lambda part: len(encode(part)), max_tokens)
        if len(parts) > 1:
            log.warning(_split_warning(sentence, len(encode(sentence)), max_tokens, len(parts)))
        texts += filter(None, map(str.strip, parts))
    return [Segment(text, encode(text)) for text in texts]


def search_segments(
    translator: "Translator",
    segments: list[Segment],
    config: TranslationConfig,
    progress: Progress | None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each segment; batches have segments of similar length."""
    before, after = translator.template.before, translator.template.after
    rows = [[*before, *segment.ids, *after] for segment in segments]
    max_len, limit = translator.backend.max_len, config.max_target_len
    limits = [min(limit or 2 * len(row) + 20, max_len) for row in rows]
    lengths = list(map(len, rows))
    order = sorted(range(len(rows)), key=lengths.__getitem__, reverse=True)
    found: dict[int, list[Hypothesis]] = {}
    for start in range(0, len(order), config.batch_size):
        batch = order[start : start + config.batch_size]
        hypotheses = translator.backend.search(
            [rows[n] for n in batch], [limits[n] for n in batch], config
        )
        found.update(zip(batch, hypotheses, strict=True))
        if progress is not None:
            progress(len(found), len(rows))
    return [found[n] for n in range(len(rows))]


def decode_hypotheses(
    translator: "Translator",
    segment: Segment,
    hypotheses: list[Hypothesis],
    config: TranslationConfig,
) -> list[Translation]:
    """Decode the n_best hypotheses of a segment."""
    translations = []
    for hypothesis in hypotheses[: config.n_best]:
        ids = [id for id in hypothesis.ids if id != translator.eos]
        text = " ".join(translator.target.decode(ids).splitlines()).strip()  # no new lines
        translations.append(
            Translation(
                text,
                hypothesis.score,
                translator.target.display_tokens(ids) if config.details else [],
                translator.links(segment.text, ids) if config.alignment else None,
            )
        )
    return translations


def join_translations(
    translated: Iterable[list[Translation]],
    join: Callable[[list[str]], str],
    config: TranslationConfig,
) -> list[Translation]:
    """Join the n-th translations of several parts; their scores are added."""
    parts = list(translated)
    if not parts:
        return [Translation("", alignment=[] if config.alignment else None)]
    if len(parts) == 1:
        return parts[0]
    ranks = range(max(map(len, parts)))  # an empty line has one translation, used for every rank
    return [
        Translation(
            join([part.text for part in row]),
            sum(part.score for part in row),
            [token for part in row for token in part.tokens],
            [link for part in row for link in part.alignment or []] if config.alignment else None,
        )
        for row in ([part[min(rank, len(part) - 1)] for part in parts] for rank in ranks)
    ]


def _split_warning(sentence: str, n_tokens: int, max_tokens: int, n_parts: int) -> str:
    return _(
        "'{sentence}': {n_tokens:,} tokens, the maximum is {max_tokens:,}; "
        "translated in {n_parts} parts",
        sentence=sentence if len(sentence) <= 30 else f"{sentence[:30]}…",
        n_tokens=n_tokens,
        max_tokens=max_tokens,
        n_parts=n_parts,
    )


def check_sources(texts: Sequence[str]) -> list[str]:
    """Return the texts as a list; one that is too long to be translated as one is an error."""
    texts = check_texts("texts", texts)
    for index, text in enumerate(texts):
        if len(text) > MAX_TEXT_CHARACTERS:
            wrong = _("{n_characters:,} characters", n_characters=len(text))
            right = _("split it into lines of at most {limit:,}", limit=MAX_TEXT_CHARACTERS)
            raise QkvError(f"texts[{index}]", wrong, right)
    return texts
