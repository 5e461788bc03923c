"""From the `model` option of a recipe to the spec of each task: the right family, with the vocabularies that were learned.

In: a completed option (model/model_option.py) and what the task decides. Out: the Spec to train.
Told in docs/training.md, "The model of a recipe".
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.model_option import build_spec, is_file
from qkv.model.spec import LmHead, MaskedHead, Spec


def translation_spec(
    model: Mapping[str, Any], vocab_size: int, source_vocab_size: int | None
) -> Spec:
    """An encoder-decoder for these vocabularies; None for the source: one vocabulary for both sides."""
    spec, name = build_spec(model), model["preset"]
    if spec.encoder is None or spec.decoder is None:
        wrong = _("'{name}' is no encoder-decoder", name=name)
        raise QkvError("model", wrong, _("translation needs both stacks, as in 'tiny'"))
    if spec.decoder.sees != "past":
        wrong = _("the decoder of '{name}' sees the future", name=name)
        raise QkvError("model", wrong, _('give its decoder "sees": "past"'))
    return replace(spec, vocab_size=vocab_size, source_vocab_size=source_vocab_size)


def generation_spec(model: Mapping[str, Any], vocab_size: int, context: int) -> Spec:
    """A causal decoder for this vocabulary and windows of this many tokens."""
    spec, name = build_spec(model), model["preset"]
    if (
        spec.encoder is not None
        or spec.decoder is None
        or spec.decoder.sees != "past"
        or not isinstance(spec.head, LmHead)
    ):
        wrong = _("'{name}' is no language model", name=name)
        raise QkvError("model", wrong, _("it needs a decoder alone, as in 'llama'"))
    return replace(spec, vocab_size=vocab_size, max_len=context)


def embedding_spec(model: Mapping[str, Any], vocab_size: int, predicts_masked: bool) -> Spec:
    """An encoder for this vocabulary; with a head over the vocabulary if it is trained on masked tokens."""
    spec, name = build_spec(model), model["preset"]
    if spec.encoder is None or spec.decoder is not None:
        wrong = _("'{name}' is no encoder alone", name=name)
        raise QkvError("model", wrong, _("sentence vectors need one, as in 'minilm'"))
    own = isinstance(spec.head, LmHead | MaskedHead) and not is_file(
        name
    )  # where a file names no head, LmHead is read
    head = spec.head if own else MaskedHead()
    return replace(spec, vocab_size=vocab_size, head=head if predicts_masked else None)
