"""Steppers: the interface between decoding algorithms and a model, with prefill and decode steps.

Greedy decoding, sampling and beam search use a model through a stepper only. Rows may join and
leave a running batch; logits are batch-invariant, to the last bit on the native path, otherwise up
to rounding. See docs/explanation/performance.md.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from qkv.engine.int8 import can_be_int8, int8_unsupported
from qkv.engine.kv_cache import SEQUENCE, SLOT, beam_rows, next_rows
from qkv.engine.packed_model import PackedModel, right_padded, right_padding_mask
from qkv.engine.packed_stack import is_packable
from qkv.model.attention import EagerCore
from qkv.model.eval_mode import eval_mode
from qkv.model.head import LmHead
from qkv.model.spec import ALiBi, Custom
from qkv.model.transformer import LayerStack, Memory, Transformer
from qkv.threads import one_torch_thread


class Stepper(Protocol):
    """A batch of rows: sequences that grow by one token per step."""

    def decoding(self) -> AbstractContextManager[None]:
        """The context of a decode loop: eval mode, no gradients, no autocast."""
        ...

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """Start a new batch; return the logits after each prompt, (rows, vocab).

        Args:
            prompts: One or more tokens each, of any lengths; [bos] for an encoder-decoder.
            sources: The encoder's inputs, for an encoder-decoder.
        """
        ...

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) new tokens -> (rows, vocab) logits of the next, which the caller may modify."""
        ...

    def reorder(self, rows: Sequence[int], beams: int = 1) -> None:
        """New row i continues old row rows[i]: rows are dropped, reordered or repeated.

        With `beams` > 1, each group of that many consecutive rows are the beams of one sequence;
        they continue rows of one sequence and share its cache slots.
        """
        ...

    def join(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """Append rows to the batch; return the logits after their prompts.

        With beams, each prompt gets that many equal rows.
        """
        ...


class PackedStepper:
    """A stepper with packed weights, in the native library or torch; see packed_model.py."""

    def __init__(self, model: Transformer, int8: bool = False):
        self.model, self.int8, self.packed, self.beams = model, int8, PackedModel.of(model, int8), 1

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """On the native path, the torch operations between native steps use one thread."""
        threads = nullcontext() if self.packed.native is None else one_torch_thread()
        # autocast off: the native library reads float32
        with torch.inference_mode(), torch.autocast("cpu", enabled=False), threads:
            yield

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        self.memory = None if sources is None else self.packed.encode(sources, self.model)
        logits, self.cache = self.packed.prefill(prompts, self.memory)
        self.rows, self.beams = next_rows(list(map(len, prompts))), 1
        return logits

    def step(self, ids: Tensor) -> Tensor:
        return self.packed.step(ids, self.rows, self.cache, self.memory)

    def reorder(self, rows: Sequence[int], beams: int = 1) -> None:
        if beams > 1 and self.cache.conv_inputs is not None:
            beams = 1  # a convolution's inputs are not shared
        before, self.beams = self.beams, beams
        parents = torch.tensor(rows)
        sequences = parents[::beams] // before
        changed = sequences.tolist() != list(range(self.cache.sequences))
        if beams > before:
            self._update_mask()
        if changed:
            kept = sequences.to(self.cache.store.device)
            self.cache.select(kept)
            if self.memory is not None:
                self.memory.select(kept)
        if max(before, beams) > 1:
            beam_parents = (parents % before).view(-1, beams)
            self.cache.reorder_beams(beam_parents.to(self.cache.store.device))
        if changed or before != beams:
            self.rows = beam_rows(self.rows, parents, before, beams)

    def _update_mask(self) -> None:
        """Write the mask, which the native library does not update without beams."""
        if not self.cache.masked:
            self.cache.fill(self.rows[SLOT].tolist())

    def join(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        new = PackedStepper(self.model, self.int8)
        logits = new.prefill(prompts, sources)
        if self.beams > 1:
            new.reorder([row for row in range(len(prompts)) for _ in range(self.beams)], self.beams)
            logits = logits.repeat_interleave(self.beams, dim=0)
        new.rows[SEQUENCE] += self.cache.sequences
        self._update_mask()
        self.cache.append(new.cache)
        if self.memory is not None and new.memory is not None:
            self.memory.append(new.memory)
        self.rows = torch.cat([self.rows, new.rows], dim=1)
        return logits


class PlainStepper:
    """A stepper with the model's own forward and cache, for every architecture.

    Shorter prompts are padded on the left. `memory` is the encoder's output, if no sources are
    given.
    """

    def __init__(self, model: Transformer, memory: Memory | None = None):
        self.model, self.device, self.memory = model, model.embed.weight.device, memory

    def decoding(self) -> AbstractContextManager[None]:
        return eval_mode(self.model)

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        assert min(map(len, prompts)) >= 1, "a prompt has at least one token"
        self.sequences, self.sources = [list(prompt) for prompt in prompts], sources
        self.cache = self.model.new_cache()
        if sources is not None:
            source_ids = torch.tensor(right_padded(sources), device=self.device)
            source_mask = right_padding_mask(list(map(len, sources)), self.device)
            self.memory = self.model.encode(source_ids, source_mask)
        lengths = list(map(len, prompts))
        left_padded = [[0] * (max(lengths) - len(prompt)) + prompt for prompt in prompts]
        ids = torch.tensor(left_padded, device=self.device)
        attention_mask = right_padding_mask(lengths, self.device)
        if attention_mask is not None:
            attention_mask = attention_mask.flip(1)
        # (rows, longest, d_model)
        stream = self.model.decode(ids, self.memory, self.cache, attention_mask)
        return self.model.logits(stream[:, -1])  # (rows, vocab)

    def step(self, ids: Tensor) -> Tensor:
        for sequence, id in zip(self.sequences, ids.tolist(), strict=True):
            sequence.append(id)
        stream = self.model.decode(ids[:, None], self.memory, self.cache)  # (rows, 1, d_model)
        return self.model.logits(stream[:, 0])  # (rows, vocab)

    def reorder(self, rows: Sequence[int], beams: int = 1) -> None:
        self.sequences = [list(self.sequences[row]) for row in rows]
        kept = torch.tensor(rows, device=self.device)
        self.cache.reorder(kept)
        self.memory = None if self.memory is None else self.memory.reorder(kept)
        self.sources = None if self.sources is None else [self.sources[row] for row in rows]

    def join(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """All rows are computed again: caches of arbitrary mixers cannot be concatenated."""
        both = None if sources is None or self.sources is None else [*self.sources, *sources]
        return self.prefill([*self.sequences, *prompts], both)[-len(prompts) :]


def make_stepper(model: Transformer, int8: bool = False) -> Stepper:
    """A stepper for this model: packed if the engine supports it, else plain."""
    if supports(model, int8):
        return PackedStepper(model, int8)
    if int8:
        raise int8_unsupported()
    return PlainStepper(model)


def supports(model: Transformer, int8: bool = False) -> bool:
    """Whether the engine supports a model: equal blocks, full attention, no experts.

    A decoder-only model may begin with a convolution. With `int8`, the weights must be
    quantizable on this machine. False while a recording has replaced an attention core.
    """
    spec, decoder, encoder = model.spec, model.decoder, model.encoder
    if decoder is None or spec.decoder is None or type(model.lm_head) is not LmHead:
        return False
    return (
        spec.decoder.causal
        and not isinstance(spec.positions, ALiBi | Custom)
        and is_packable(spec.decoder, convolution=encoder is None)
        and (encoder is None or (spec.token_types == 0 and not is_recorded(encoder)))
        and not is_recorded(decoder)
        and (not int8 or can_be_int8(model.embed.weight))
    )


def is_recorded(stack: LayerStack) -> bool:
    """Whether a recording has replaced an attention core of this stack."""
    for block in stack.layers:
        for sublayer in block.children():
            if isinstance(getattr(getattr(sublayer, "branch", None), "core", None), EagerCore):
                return True
    return False
