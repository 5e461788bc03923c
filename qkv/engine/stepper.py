"""Steppers: the seam between the decoding algorithms and a model, for encoder-decoder and decoder-only models.

In: prompts (and sources), then one token id per row and step. Out: logits (rows, vocab). Greedy decoding, sampling and beam search
read a model only through a stepper. Rows may join and leave a running batch; a row's logits do not depend on the other
rows: to the last bit on the native path, else up to rounding. Explained in docs/performance.md, "Decoding".
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from qkv.engine.int8 import no_int8
from qkv.engine.kv_cache import SEQUENCE, SLOT, beam_rows, next_rows
from qkv.engine.packed_model import PackedModel, right_padded, supports
from qkv.model.transformer import Memory, Transformer
from qkv.threads import one_torch_thread


class Stepper(Protocol):
    """Rows are sequences that grow by a token a step."""

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """Start anew with these rows -> (rows, vocab) logits after each prompt.

        Prompts have one token or more, lengths may differ. For an encoder-decoder they are what the target begins with ([bos]), and
        `sources` are what the encoder reads.
        """
        ...

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) newest tokens -> (rows, vocab) logits of the next, which the caller may overwrite."""
        ...

    def reorder(self, rows: Sequence[int], beams: int = 1) -> None:
        """New row i continues old row rows[i]: rows leave, change their order, or are repeated.

        With `beams`, each so many rows in a row are the beams of one sequence and continue rows of one sequence; their past is shared.
        """
        ...

    def join(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """New rows enter after those there are -> logits after their prompts. With beams, each prompt gets that many equal rows."""
        ...


class PackedStepper:
    """Packed weights, by the native library or torch operations; see packed_model.py."""

    def __init__(self, model: Transformer, int8: bool = False):
        self.model, self.int8, self.packed, self.beams = model, int8, PackedModel.of(model, int8), 1

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        with decode_threads(self):
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
        sequences = [row // before for row in rows[::beams]]
        leaves, parents = sequences != list(range(self.cache.sequences)), torch.tensor(rows)
        if beams > before:
            self._update_mask()
        if leaves:
            kept = torch.tensor(sequences, device=self.cache.store.device)
            self.cache.select(kept)
            if self.memory is not None:
                self.memory.select(kept)
        if max(before, beams) > 1:
            self.cache.follow((parents % before).view(-1, beams).to(self.cache.store.device))
        if leaves or before != beams:
            self.rows = beam_rows(self.rows, parents, before, beams)

    def _update_mask(self) -> None:
        """Without beams the native library needs no mask and does not write it."""
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
    """The model's own decode, with its cache; shorter prompts are padded on the left. For every kind of decoder.

    `memory` is the encoder's output, if it is computed already and no sources are given.
    """

    def __init__(self, model: Transformer, memory: Memory | None = None):
        self.model, self.device, self.memory = model, model.embed.weight.device, memory

    def prefill(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        self.texts, self.sources, self.cache = (
            [list(prompt) for prompt in prompts],
            sources,
            self.model.new_cache(),
        )
        if sources is not None:
            ids, real = (
                torch.tensor(right_padded(sources), device=self.device),
                padding_mask(sources, self.device),
            )
            self.memory = self.model.encode(ids, real)
        real = padding_mask(prompts, self.device)
        assert min(map(len, prompts)) >= 1, "a prompt has at least one token"
        longest = max(map(len, prompts))
        ids = torch.tensor(
            [[0] * (longest - len(prompt)) + prompt for prompt in prompts], device=self.device
        )
        stream = self.model.decode(
            ids, self.memory, self.cache, None if real is None else real.flip(1)
        )  # (rows, longest, d_model)
        return self.model.logits(stream[:, -1])  # (rows, vocab)

    def step(self, ids: Tensor) -> Tensor:
        for text, id in zip(self.texts, ids.tolist(), strict=True):
            text.append(id)
        stream = self.model.decode(ids[:, None], self.memory, self.cache)  # (rows, 1, d_model)
        return self.model.logits(stream[:, 0])  # (rows, vocab)

    def reorder(self, rows: Sequence[int], beams: int = 1) -> None:
        self.texts = [list(self.texts[row]) for row in rows]
        kept = torch.tensor(rows, device=self.device)
        self.cache.keep(kept)
        self.memory = None if self.memory is None else self.memory.keep(kept)
        self.sources = None if self.sources is None else [self.sources[row] for row in rows]

    def join(self, prompts: list[list[int]], sources: list[list[int]] | None = None) -> Tensor:
        """All rows are computed again: caches of any kind of mixer cannot be joined."""
        both = None if sources is None or self.sources is None else [*self.sources, *sources]
        return self.prefill([*self.texts, *prompts], both)[-len(prompts) :]


def padding_mask(rows: list[list[int]], device: torch.device) -> Tensor | None:
    """Which ids of rows that are filled up at the end are tokens, (rows, longest); None: all are."""
    lengths = list(map(len, rows))
    if min(lengths) == max(lengths):
        return None
    return torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device)[:, None]


def make_stepper(model: Transformer, int8: bool = False) -> Stepper:
    """A stepper for this model, packed where it can be; only packed weights can be int8."""
    if supports(model, int8):
        return PackedStepper(model, int8)
    if int8:
        raise no_int8()
    return PlainStepper(model)


def decode_threads(stepper: object) -> AbstractContextManager[None]:
    """For the steps of a decode loop: on the native path torch's small operations use one thread."""
    native = isinstance(stepper, PackedStepper) and stepper.packed.native is not None
    return one_torch_thread() if native else nullcontext()
