"""KV cache: keys and values of earlier tokens, one object per layer.

See docs/explanation/model.md, "KV cache".
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv.model.attention_context import AttentionContext

Tensors = tuple[Tensor, ...]


class MixerCache(Protocol):
    """What a token mixer keeps between steps."""

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch: drop, reorder or repeat them, as beam search needs."""
        ...


class GrowingCache:
    """Keys and values that grow along their key axis, in buffers that double in size."""

    def __init__(self) -> None:
        self.buffers: tuple[Tensor, ...] = ()
        self.length = 0

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append tensors (batch, heads, new, width); returns views (batch, heads, key, width)."""
        end = self.length + new[0].shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            self._grow(max(64, 2 * end), new)
        for buffer, piece in zip(self.buffers, new, strict=True):
            buffer[:, :, self.length : end] = piece
        self.length = end
        return tuple(buffer[:, :, :end] for buffer in self.buffers)

    def extend_with(
        self, context: AttentionContext, *new: Tensor
    ) -> tuple[Tensors, AttentionContext]:
        """The same, with the context of all tokens."""
        return self.extend(*new), context

    @property
    def bytes(self) -> int:
        """Bytes in use (a buffer may be up to twice as long)."""
        return n_bytes(buffer[:, :, : self.length] for buffer in self.buffers)

    def _grow(self, capacity: int, new: tuple[Tensor, ...]) -> None:
        grown = tuple(piece.new_empty(*piece.shape[:2], capacity, piece.shape[3]) for piece in new)
        for old, larger in zip(self.buffers, grown, strict=False):
            larger[:, :, : self.length] = old[:, :, : self.length]
        self.buffers = grown

    @torch.no_grad()
    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch: drop, reorder or repeat them, as beam search needs."""
        selected = []
        for buffer in self.buffers:
            copy = buffer.new_empty(len(rows), *buffer.shape[1:])
            used = buffer[:, :, : self.length]
            torch.index_select(used, 0, rows, out=copy[:, :, : self.length])
            selected.append(copy)
        self.buffers = tuple(selected)


class WindowCache:
    """Keys and values, or inputs, of the last `size` tokens of each row; padding is not kept.

    Rows with fewer tokens have padding before them, which the context masks.
    """

    def __init__(self, size: int):
        self.size, self.tensors = size, Tensors()

    def extend_with(
        self, context: AttentionContext, *new: Tensor
    ) -> tuple[Tensors, AttentionContext]:
        """Append tensors (batch, heads, new, width); returns also what is in a new token's window.

        These are the last size - 1 tokens before the new ones, with the context of them all.
        """
        context = context.last(self.size - 1)
        every = new
        if self.tensors:
            kept = (old[:, :, old.shape[2] - context.past :] for old in self.tensors)
            every = tuple(torch.cat(pair, dim=2) for pair in zip(kept, new, strict=True))
        self.tensors = tuple(context.select_last(x, self.size) for x in every)
        return every, context

    @property
    def bytes(self) -> int:
        return n_bytes(self.tensors)

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch: drop, reorder or repeat them, as beam search needs."""
        self.tensors = tuple(tensor.index_select(0, rows) for tensor in self.tensors)


class StateCache:
    """The state of a recurrence after the last token of each row; its size is constant."""

    def __init__(self) -> None:
        self.tensors = Tensors()  # (batch, width) each: h, and c of an LSTM; empty before a token

    @property
    def bytes(self) -> int:
        return n_bytes(self.tensors)

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch: drop, reorder or repeat them, as beam search needs."""
        self.tensors = tuple(tensor.index_select(0, rows) for tensor in self.tensors)


class FixedCache:
    """Keys and values of the encoder's memory: computed at the first step, constant afterwards."""

    def __init__(self) -> None:
        self.tensors: tuple[Tensor, ...] | None = None

    def get_or_compute(self, compute: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if self.tensors is None:
            self.tensors = compute()
        return self.tensors

    def reorder(self, rows: Tensor) -> None:
        if self.tensors is not None:
            self.tensors = tuple(tensor.index_select(0, rows) for tensor in self.tensors)


class LayerCache:
    """The cache of one block: its token mixer and its cross-attention."""

    def __init__(self, attn: MixerCache | None = None) -> None:
        self.attn: Any = attn or GrowingCache()
        self.cross = FixedCache()


class Cache:
    """The KV cache of a decoder."""

    def __init__(self, n_layers: int):
        self.layers = [LayerCache() for _ in range(n_layers)]
        self.length = 0
        self.attention_mask: Tensor | None = None  # (batch, length); None: no padding so far

    def append_mask(self, attention_mask: Tensor | None, batch: int, length: int) -> None:
        """Append the mask of `length` new tokens; a mask is kept only if there is padding."""
        known = self.attention_mask if self.attention_mask is not None else attention_mask
        if known is not None:
            before, after = self.attention_mask, attention_mask
            before = known.new_ones(batch, self.length) if before is None else before
            after = known.new_ones(batch, length) if after is None else after
            self.attention_mask = torch.cat([before, after], dim=1)
        self.length += length

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the batch in every layer: drop, reorder or repeat them."""
        for layer in self.layers:
            layer.attn.reorder(rows)
            layer.cross.reorder(rows)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask.index_select(0, rows)

    @property
    def bytes(self) -> int:
        """Bytes in use for token mixers: keys and values, or other inputs and states."""
        return sum(int(layer.attn.bytes) for layer in self.layers)


def n_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def new_mixer_cache(mixer: Any) -> MixerCache:
    """The cache that a mixer asks for, or one that keeps all tokens."""
    make: Callable[[], MixerCache] = getattr(mixer, "new_cache", GrowingCache)
    return make()
