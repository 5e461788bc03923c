"""Word alignment of translations by cross-attention weights, with the torch model.

See docs/guides/translation.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from qkv.generate.alignment import (
    Link,
    align,
    cross_weights,
    linked_words,
    source_units,
    target_units,
    unit_spans,
)
from qkv.text.word_boundaries import word_spans

if TYPE_CHECKING:
    from qkv.pipeline.translator import Translator


def links(translator: "Translator", text: str, ids: Sequence[int]) -> list[Link]:
    """Return the word alignment of a translation; `ids` are its tokens without <eos>."""
    words = source_units(translator.source, text), target_units(translator.target, ids)
    weights = alignment_weights(translator, text, ids)
    return align(weights, *words, null=translator.alignment is not None)


def alignment_weights(translator: "Translator", text: str, ids: Sequence[int]) -> Tensor:
    """Return attention weights, (target tokens, source tokens + <eos>); row i is of token i."""
    source_ids, target_in = translator.encode_source(text), [translator.bos, *ids[:-1]]
    weights = cross_weights(translator.model, source_ids, target_in, translator.alignment)
    return weights[:, len(translator.template.before) :]


def span_links(translator: "Translator", source: str, target: str) -> list[tuple[int, int, int]]:
    """Align a pair: (start, end, n) links source[start:end] with target word n."""
    weights = alignment_weights(translator, source, translator.target.encode(target))
    words, units = source_units(translator.source, source), source_units(translator.target, target)
    source_spans, target_spans = unit_spans(source, words), unit_spans(target, units)
    found = linked_words(weights, words, units, null=translator.alignment is not None)
    return [
        (*source_spans[word], number)
        for unit, word, _ in found
        for number, (start, end) in enumerate(word_spans(target))
        if target_spans[unit][0] < end and start < target_spans[unit][1]
    ]
