"""The KV cache: keys and values of all layers in slots of one buffer, and the rows of a step that read and write them.

A sequence fills its slots from 0 on, so that the slot of a token is its position, whatever the other sequences are. The
beams of a sequence share its slots: each step takes one more slot for each beam, and a mask tells which slots are a
beam's own past, so that no key is copied when beams are reordered. Explained in docs/performance.md, "Decoding".
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SLOT_MULTIPLE = 16  # capacities are multiples of a vector register: softmax over 11 slots costs several times that over 16


class LayerKV(NamedTuple):
    """What the queries of one layer attend to."""

    keys: Tensor  # (sequences * kv_heads, d_head, slots)
    values: Tensor  # (sequences * kv_heads, slots, d_head)
    mask: (
        Tensor  # (sequences or 1, 1, beams or 1, 1, slots): 0, or -inf where a query may not attend
    )


class KVCache:
    """`store` is (2, layers, sequences, kv_heads, capacity, d_head), `mask` (sequences or 1, beams or 1, capacity).

    `conv_inputs` (sequences, taps - 1 + capacity, d_model) are those of a convolution before the attention layers.
    `lengths` (sequences,) are given for an encoder's output, which no step changes.
    """

    def __init__(
        self,
        store: Tensor,
        mask: Tensor,
        used: int = 0,
        conv_inputs: Tensor | None = None,
        lengths: Tensor | None = None,
    ):
        self.store, self.mask, self.used, self.conv_inputs, self.lengths = (
            store,
            mask,
            used,
            conv_inputs,
            lengths,
        )
        self.even = True  # all sequences have equally many slots in use
        self.masked = False  # beams share or have shared slots: without the mask a row would attend to all slots before its end
        self.views: list[LayerKV] = []
        self.native: tuple[Tensor, Tensor, Any] | None = (
            None  # the structure that the native library reads
        )

    @property
    def sequences(self) -> int:
        return self.store.shape[2]

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    @staticmethod
    def empty(shape: Sequence[int], like: Tensor, taps: int = 0) -> "KVCache":
        """A cache of shape (layers, sequences, kv_heads, capacity, d_head); zeros, because masked slots are still multiplied."""
        conv_inputs = like.new_zeros(shape[1], taps - 1 + shape[3], like.shape[1]) if taps else None
        return KVCache(
            like.new_zeros(2, *shape), like.new_full((1, 1, shape[3]), -math.inf), 0, conv_inputs
        )

    def fill(self, lengths: list[int]) -> None:
        """The first slots of each sequence hold its prompt."""
        self.used = max(lengths)
        self.even = min(lengths) == self.used
        if self.even:
            self.mask[..., : self.used] = 0.0
        else:
            slots, ends = (
                torch.arange(self.capacity, device=self.mask.device),
                torch.tensor(lengths, device=self.mask.device),
            )
            self.mask = self.mask.new_zeros(len(lengths), 1, self.capacity).masked_fill_(
                slots >= ends[:, None, None], -math.inf
            )

    def reserve(self, slots: int) -> None:
        """Make room for so many more."""
        while self.used + slots > self.capacity:
            before = self.capacity
            self.store, self.mask = (
                grown(self.store, 4, 2 * before, 0.0),
                grown(self.mask, 2, 2 * before, -math.inf),
            )
            if self.conv_inputs is not None:
                self.conv_inputs = grown(
                    self.conv_inputs, 1, self.conv_inputs.shape[1] + before, 0.0
                )
            self.views = []

    def next(self, slots: Tensor | None, beams: int) -> tuple[int | Tensor, list[LayerKV]]:
        """Take a slot for each row, which it may attend to; `slots` (rows,) where the sequences are of unequal length."""
        first, self.used = self.used, self.used + beams
        if slots is None:
            self.mask.narrow(2, first, beams).diagonal(0, 1, 2).zero_()
        else:
            row = torch.arange(len(slots), device=slots.device)
            self.mask = self.mask.expand(self.sequences, -1, -1).contiguous()
            self.mask[row // beams, row % beams, slots] = 0.0
        if not self.views or self.used > self.views[0].keys.shape[2] or slots is not None:
            self.view(round_up(self.used))
        return first if slots is None else slots, self.views

    def view(self, slots: int) -> None:
        """The first slots as each layer reads them."""
        keys, values = self.store.narrow(4, 0, slots).flatten(
            2, 3
        )  # (layers, sequences * kv_heads, slots, d)
        mask = self.mask.narrow(2, 0, slots)[:, None, :, None]
        self.views = [
            LayerKV(k.transpose(1, 2), v, mask) for k, v in zip(keys, values, strict=True)
        ]

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences, in this order; one may come twice."""
        slots, before = (
            self.views[0].keys.shape[2] if self.views else round_up(self.used),
            self.sequences,
        )
        self.store = self.store.index_select(2, sequences)
        self.conv_inputs = (
            None if self.conv_inputs is None else self.conv_inputs.index_select(0, sequences)
        )
        self.lengths = (
            None
            if self.lengths is None
            else self.lengths.index_select(0, sequences.to(self.lengths.device))
        )
        if len(self.mask) > 1 or self.masked:
            self.mask = self.mask.expand(before, -1, -1).index_select(0, sequences)
        self.view(slots)

    def follow(self, parents: Tensor) -> None:
        """Beam i of a sequence continues its old beam parents[sequence, i]."""
        mask, self.masked = self.mask.expand(len(parents), -1, -1), True
        self.mask, self.views = mask.gather(1, parents[..., None].expand(-1, -1, mask.shape[2])), []

    def append(self, other: "KVCache") -> None:
        """Add the sequences of another cache, which have as many beams."""
        capacity = max(self.capacity, other.capacity)
        self.store, self.mask = (
            torch.cat(pair, dim=dim)
            for pair, dim in (
                ([grown(cache.store, 4, capacity, 0.0) for cache in (self, other)], 2),
                ([cache.row_masks(capacity) for cache in (self, other)], 0),
            )
        )
        self.masked = self.masked or other.masked
        self.even = self.even and other.even and self.used == other.used
        self.used = max(self.used, other.used)
        if self.conv_inputs is not None and other.conv_inputs is not None:
            longest = max(self.conv_inputs.shape[1], other.conv_inputs.shape[1])
            self.conv_inputs = torch.cat(
                [grown(inputs, 1, longest, 0.0) for inputs in (self.conv_inputs, other.conv_inputs)]
            )
        if self.lengths is not None and other.lengths is not None:
            self.lengths = torch.cat([self.lengths, other.lengths])
        self.view(round_up(self.used))

    def row_masks(self, capacity: int) -> Tensor:
        """The mask of each row, over so many slots."""
        return grown(self.mask, 2, capacity, -math.inf).expand(self.sequences, -1, -1)


def grown(tensor: Tensor, dim: int, size: int, value: float) -> Tensor:
    """Filled up at the end of a dimension."""
    shape = [*tensor.shape[:dim], size - tensor.shape[dim], *tensor.shape[dim + 1 :]]
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim)


def round_up(slots: int) -> int:
    """The next multiple of SLOT_MULTIPLE."""
    return -(-slots // SLOT_MULTIPLE) * SLOT_MULTIPLE


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────
SEQUENCE, SLOT, POSITION, END = range(4)  # the lines of a tensor of rows, (4, rows)


def prompt_rows(lengths: list[int], causal: bool = True) -> Tensor:
    """A row for each token of sequences laid end to end, (4, tokens): its sequence, slot, position and end.

    It attends to the slots before its end: up to itself, or without `causal` to its whole sequence.
    """
    sizes = torch.tensor(lengths)
    sequence = torch.arange(len(lengths)).repeat_interleave(sizes)
    slot = torch.arange(len(sequence)) - (sizes.cumsum(0) - sizes)[sequence]
    return torch.stack([sequence, slot, slot, slot + 1 if causal else sizes[sequence]]).int()


def next_rows(lengths: list[int]) -> Tensor:
    """A row for the next token of each sequence, (4, sequences)."""
    slot = torch.tensor(lengths)
    return torch.stack([torch.arange(len(slot)), slot, slot, slot + 1]).int()


def beam_rows(rows: Tensor, parents: Tensor, before: int, beams: int) -> Tensor:
    """The rows of `beams` beams that continue the rows `parents` (new rows,), of which each sequence had `before`."""
    new = rows[:, parents]
    beam = torch.arange(len(parents), dtype=torch.int32) % beams
    new[SEQUENCE] = torch.arange(len(parents), dtype=torch.int32) // beams
    first = new[SLOT] - parents.int() % before  # of the slots that are free
    new[SLOT], new[END] = first + beam, first + beams
    return new
