"""The spec of each task: the recipe's `model` option with the vocabularies of the tokenizers.

See docs/guides/training.md.
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
    """An encoder-decoder for these vocabularies; source_vocab_size None: a shared vocabulary."""
    spec, name = build_spec(model), model["preset"]
    if spec.encoder is None or spec.decoder is None:
        wrong = _("'{name}' is not an encoder-decoder", name=name)
        raise QkvError(
            "model", wrong, _("translation needs an encoder and a decoder, as in 'tiny'")
        )
    if not spec.decoder.causal:
        wrong = _("the decoder of '{name}' is not causal", name=name)
        raise QkvError("model", wrong, _('give its decoder "causal": true'))
    return replace(spec, vocab_size=vocab_size, source_vocab_size=source_vocab_size)


def generation_spec(model: Mapping[str, Any], vocab_size: int, context_length: int) -> Spec:
    """A causal decoder for this vocabulary and context length."""
    spec, name = build_spec(model), model["preset"]
    if (
        spec.encoder is not None
        or spec.decoder is None
        or not spec.decoder.causal
        or not isinstance(spec.head, LmHead)
    ):
        wrong = _("'{name}' is not a causal language model", name=name)
        raise QkvError("model", wrong, _("use a decoder-only model, such as 'llama'"))
    return replace(spec, vocab_size=vocab_size, max_len=context_length)


def embedding_spec(model: Mapping[str, Any], vocab_size: int, with_mlm_head: bool) -> Spec:
    """An encoder for this vocabulary, with a head over the vocabulary for MLM."""
    spec, name = build_spec(model), model["preset"]
    if spec.encoder is None or spec.decoder is not None:
        wrong = _("'{name}' is not encoder-only", name=name)
        raise QkvError("model", wrong, _("use an encoder-only model, such as 'minilm'"))
    # A file without a head is read with LmHead.
    own = isinstance(spec.head, LmHead | MaskedHead) and not is_file(name)
    head = spec.head if own else MaskedHead()
    return replace(spec, vocab_size=vocab_size, head=head if with_mlm_head else None)
