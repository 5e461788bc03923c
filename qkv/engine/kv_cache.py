"""KV cache: keys and values of all layers in slots of one buffer, and the rows of a step.

A sequence fills its slots from 0 on, so that the slot of a token is its position, independent of
the other sequences. The beams of a sequence share its slots: each step takes one more slot per
beam, and a mask selects the slots of a beam's own past, so that reordering beams copies no keys.
See docs/explanation/performance.md.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from qkv.engine.packed_stack import PackedStack

SLOT_MULTIPLE = 16  # of capacities: softmax over 11 slots takes several times that over 16


class LayerKV(NamedTuple):
    """What the queries of one layer attend to."""

    keys: Tensor  # (sequences * kv_heads, d_head, slots)
    values: Tensor  # (sequences * kv_heads, slots, d_head)
    mask: Tensor  # (sequences or 1, 1, beams or 1, 1, slots), additive: 0 or -inf


class KVCache:
    """The slots of all layers and sequences.

    Args:
        store: (2, layers, sequences, kv_heads, capacity, d_head), keys and values.
        mask: (sequences or 1, beams or 1, capacity), additive: 0 or -inf.
        used: Slots in use, of the longest sequence.
        conv_inputs: (sequences, kernel_size - 1 + capacity, d_model), the inputs of a convolution
            before the attention layers.
        lengths: (sequences,), of an encoder's output, which no step changes.
    """

    def __init__(
        self,
        store: Tensor,
        mask: Tensor,
        used: int = 0,
        conv_inputs: Tensor | None = None,
        lengths: Tensor | None = None,
    ):
        self.store, self.mask, self.used = store, mask, used
        self.conv_inputs, self.lengths = conv_inputs, lengths
        self.equal_lengths = True  # all sequences use the same number of slots
        self.masked = False  # beams share or have shared slots, so that rows need the mask
        self.views: list[LayerKV] = []  # of layer_views; []: a tensor or a size has changed
        self.native: tuple[Tensor, Tensor, Any] | None = None  # structure for the native library

    @property
    def sequences(self) -> int:
        return self.store.shape[2]

    @property
    def capacity(self) -> int:
        return self.store.shape[4]

    @staticmethod
    def empty(stack: "PackedStack", sequences: int, capacity: int) -> "KVCache":
        """The cache of a stack, filled with zeros, because masked slots are still multiplied."""
        table, heads, conv_inputs = stack.table, stack.heads, None
        if stack.convolution is not None:
            size = stack.convolution.kernel_size - 1 + capacity
            conv_inputs = table.new_zeros(sequences, size, table.shape[1])
        shape = 2, len(stack.layers), sequences, heads.n_kv_heads, capacity, heads.d_head
        mask = table.new_full((1, 1, capacity), -math.inf)
        return KVCache(table.new_zeros(shape), mask, 0, conv_inputs)

    def fill(self, lengths: list[int]) -> None:
        """Mark the first `lengths` slots of each sequence as in use."""
        self.used = max(lengths)
        self.equal_lengths = min(lengths) == self.used
        if self.equal_lengths:
            self.mask[..., : self.used] = 0.0
        else:
            slots = torch.arange(self.capacity, device=self.mask.device)
            ends = torch.tensor(lengths, device=self.mask.device)
            mask = self.mask.new_zeros(len(lengths), 1, self.capacity)
            self.mask = mask.masked_fill_(slots >= ends[:, None, None], -math.inf)

    def reserve(self, slots: int) -> None:
        """Double the capacity until there are this many free slots."""
        while self.used + slots > self.capacity:
            before = self.capacity
            self.store = padded(self.store, 4, 2 * before, 0.0)
            self.mask = padded(self.mask, 2, 2 * before, -math.inf)
            if self.conv_inputs is not None:
                size = self.conv_inputs.shape[1] + before
                self.conv_inputs = padded(self.conv_inputs, 1, size, 0.0)
            self.views = []

    def take_slots(self, slots: Tensor | None, beams: int) -> int | Tensor:
        """Take a slot for each row and unmask it; return the slots.

        Args:
            slots: (rows,), for sequences of unequal lengths; None: the next slots.
            beams: Rows per sequence.
        """
        first, self.used = self.used, self.used + beams
        if slots is None:
            self.mask.narrow(2, first, beams).diagonal(0, 1, 2).zero_()
        else:
            row = torch.arange(len(slots), device=slots.device)
            self.mask = self.mask.expand(self.sequences, -1, -1).contiguous()
            self.mask[row // beams, row % beams, slots] = 0.0
            self.views = []
        return first if slots is None else slots

    def layer_views(self) -> list[LayerKV]:
        """The slots in use of each layer, rounded up."""
        if not self.views or self.used > self.views[0].keys.shape[2]:
            slots = round_up(self.used)
            # (layers, sequences * kv_heads, slots, d_head)
            keys, values = self.store.narrow(4, 0, slots).flatten(2, 3)
            mask = self.mask.narrow(2, 0, slots)[:, None, :, None]
            self.views = [
                LayerKV(k.transpose(1, 2), v, mask) for k, v in zip(keys, values, strict=True)
            ]
        return self.views

    def select(self, sequences: Tensor) -> None:
        """Keep these sequences, in this order; one may be repeated."""
        before, self.views = self.sequences, []
        self.store = self.store.index_select(2, sequences)
        if self.conv_inputs is not None:
            self.conv_inputs = self.conv_inputs.index_select(0, sequences)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, sequences.to(self.lengths.device))
        if len(self.mask) > 1 or self.masked:
            self.mask = self.mask.expand(before, -1, -1).index_select(0, sequences)

    def reorder_beams(self, parents: Tensor) -> None:
        """Beam i of a sequence continues its old beam parents[sequence, i]."""
        mask, self.masked = self.mask.expand(len(parents), -1, -1), True
        self.mask = mask.gather(1, parents[..., None].expand(-1, -1, mask.shape[2]))
        self.views = []

    def append(self, other: "KVCache") -> None:
        """Add the sequences of another cache with the same number of beams."""
        capacity = max(self.capacity, other.capacity)
        stores = [padded(cache.store, 4, capacity, 0.0) for cache in (self, other)]
        masks = [cache.sequence_masks(capacity) for cache in (self, other)]
        self.store, self.mask = torch.cat(stores, dim=2), torch.cat(masks)
        self.masked = self.masked or other.masked
        self.equal_lengths &= other.equal_lengths and self.used == other.used
        self.used, self.views = max(self.used, other.used), []
        if self.conv_inputs is not None and other.conv_inputs is not None:
            both = self.conv_inputs, other.conv_inputs
            size = max(inputs.shape[1] for inputs in both)
            self.conv_inputs = torch.cat([padded(inputs, 1, size, 0.0) for inputs in both])
        if self.lengths is not None and other.lengths is not None:
            self.lengths = torch.cat([self.lengths, other.lengths])

    def sequence_masks(self, capacity: int) -> Tensor:
        """The mask of each sequence, over `capacity` slots."""
        return padded(self.mask, 2, capacity, -math.inf).expand(self.sequences, -1, -1)


def padded(tensor: Tensor, dim: int, size: int, value: float) -> Tensor:
    """Pad a dimension at its end to `size`."""
    shape = [*tensor.shape[:dim], size - tensor.shape[dim], *tensor.shape[dim + 1 :]]
    return torch.cat([tensor, tensor.new_full(shape, value)], dim=dim)


def round_up(slots: int) -> int:
    """The next multiple of SLOT_MULTIPLE."""
    return -(-slots // SLOT_MULTIPLE) * SLOT_MULTIPLE


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────
SEQUENCE, SLOT, POSITION, END = range(4)  # the lines of a tensor of rows, (4, rows)


def prompt_rows(lengths: list[int], causal: bool = True) -> Tensor:
    """One row per token of concatenated sequences, (4, tokens): sequence, slot, position, end.

    A row attends to the slots before its end: up to itself, or its whole sequence if not `causal`.
    """
    sizes = torch.tensor(lengths)
    sequence = torch.arange(len(lengths)).repeat_interleave(sizes)
    slot = torch.arange(len(sequence)) - (sizes.cumsum(0) - sizes)[sequence]
    return torch.stack([sequence, slot, slot, slot + 1 if causal else sizes[sequence]]).int()


def next_rows(lengths: list[int]) -> Tensor:
    """The row of the next token of each sequence, (4, sequences)."""
    slot = torch.tensor(lengths)
    return torch.stack([torch.arange(len(slot)), slot, slot, slot + 1]).int()


def beam_rows(rows: Tensor, parents: Tensor, before: int, beams: int) -> Tensor:
    """The rows (4, new rows) of `beams` beams that continue rows `parents` of `before` beams."""
    new = rows[:, parents]
    beam = torch.arange(len(parents), dtype=torch.int32) % beams
    new[SEQUENCE] = torch.arange(len(parents), dtype=torch.int32) // beams
    first = new[SLOT] - parents.int() % before  # the first free slot
    new[SLOT], new[END] = first + beam, first + beams
    return new
