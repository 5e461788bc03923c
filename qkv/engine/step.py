"""One step of decoding: the last token of each row in, the scores of the next one out.

In: source sentences, then one id per row and step. Out: logits (rows, vocab). Greedy and beam search see the model only
through this seam, so that a faster stepper changes neither. Told in docs/translation.md, "Decoding".
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from qkv.engine.int8 import no_int8
from qkv.engine.packed_model import FastStepper, can_be_fast
from qkv.model.transformer import Transformer
from qkv.threads import one_torch_thread


class Stepper(Protocol):
    """Rows are hypotheses, sentence after sentence, each sentence with equally many; at the start with one."""

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) last tokens, <bos> at first -> (rows, vocab) logits of the next, which the caller may overwrite."""
        ...

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """New row i goes on from old row rows[i]; `sentences` stay, in this order (None: all of them)."""
        ...


class CachedStepper:
    """The plain way: the model's own decode, with its cache."""

    def __init__(self, model: Transformer, source_ids: Tensor, real: Tensor | None):
        self.model, self.cache = model, model.new_cache()
        self.memory = model.encode(source_ids, real)

    def step(self, ids: Tensor) -> Tensor:
        stream = self.model.decode(ids[:, None], self.memory, self.cache)  # (rows, 1, d_model)
        return self.model.logits(stream[:, 0])                            # (rows, vocab)

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        if sentences is None and len(rows) == len(self.memory.states):
            for layer in self.cache.layers:  # the memory of a sentence is the same for all of its rows
                layer.attn.keep(rows)
        else:
            self.cache.keep(rows)
            self.memory = self.memory.keep(rows)


def make_stepper(model: Transformer, source_ids: Tensor, real: Tensor | None, int8: bool = False) -> Stepper:
    """The stepper for these sentences, (batch, source); without padding no mask is needed."""
    if real is not None and bool(real.all()):
        real = None
    if can_be_fast(model, int8):
        return FastStepper(model, source_ids, real, int8)
    if int8:
        raise no_int8()
    return CachedStepper(model, source_ids, real)


def decode_threads(stepper: object) -> AbstractContextManager[None]:
    """For the steps of a decode loop: where the native library does the work, torch's small operations take one thread."""
    fast = getattr(stepper, "fast", None)
    return nullcontext() if fast is None or fast.native is None else one_torch_thread()


def as_limits(model: Transformer, max_len: int | Tensor, source_ids: Tensor) -> Tensor:
    """One limit for all sentences, or each with its own, as (batch,); never more than the model can count."""
    limits = torch.as_tensor(max_len, device=source_ids.device).expand(len(source_ids))
    assert model.decoder is not None and int(limits.min()) >= 1, "every sentence needs room for a token"
    return limits.clamp(max=model.decoder.limit) if model.decoder.limit else limits


def never_said(source_ids: Tensor, bos_id: int, eos_id: int, pad_id: int) -> Tensor:
    """<bos> and <pad> are no part of a sentence; vocabularies that use one of them as <eos> still need to end."""
    return source_ids.new_tensor([token for token in (bos_id, pad_id) if token != eos_id])
