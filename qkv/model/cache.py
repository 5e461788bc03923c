"""What a decoder remembers between steps, one object per layer.

In: the keys and values of new tokens. Out: those of all tokens so far. Queries are not kept: a past query has already
been answered. Told in docs/model.md, "The cache".
"""

from collections.abc import Callable

import torch
from torch import Tensor


class GrowingCache:
    """Tensors that grow along their key axis, in buffers that double, so that a step copies only what is new."""

    def __init__(self) -> None:
        self.buffers: tuple[Tensor, ...] = ()
        self.length = 0

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append each (batch, heads, new, width); all so far, (batch, heads, key, width), come back without a copy."""
        end = self.length + new[0].shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            self._grow(max(64, 2 * end), new)
        for buffer, piece in zip(self.buffers, new, strict=True):
            buffer[:, :, self.length : end] = piece
        self.length = end
        return tuple(buffer[:, :, :end] for buffer in self.buffers)

    def _grow(self, capacity: int, new: tuple[Tensor, ...]) -> None:
        grown = tuple(piece.new_empty(*piece.shape[:2], capacity, piece.shape[3]) for piece in new)
        for old, fresh in zip(self.buffers, grown, strict=False):
            fresh[:, :, : self.length] = old[:, :, : self.length]
        self.buffers = grown

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Drop, reorder or repeat rows: beam search keeps the winners."""
        kept = []
        for buffer in self.buffers:
            fresh = buffer.new_empty(len(rows), *buffer.shape[1:])
            torch.index_select(buffer[:, :, : self.length], 0, rows, out=fresh[:, :, : self.length])
            kept.append(fresh)
        self.buffers = tuple(kept)


class FixedCache:
    """Keys and values of the encoder's memory: worked out at the first step, the same ever after."""

    def __init__(self) -> None:
        self.kept: tuple[Tensor, ...] | None = None

    def remember(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        if self.kept is None:
            self.kept = make()
        return self.kept

    def keep(self, rows: Tensor) -> None:
        if self.kept is not None:
            self.kept = tuple(one.index_select(0, rows) for one in self.kept)


class LayerCache:
    """What one block remembers: of its own tokens, and of the encoder's memory."""

    def __init__(self) -> None:
        self.attn, self.cross = GrowingCache(), FixedCache()


class Cache:
    """What a whole decoder remembers."""

    def __init__(self, n_layers: int):
        self.layers = [LayerCache() for _ in range(n_layers)]
        self.length = 0
        self.real: Tensor | None = None  # (batch, length), None: no padding so far

    def note(self, real: Tensor | None, batch: int, length: int) -> None:
        """New tokens have come, `real` among them; remembers padding only if there has ever been any."""
        known = self.real if self.real is not None else real
        if known is not None:
            before = known.new_ones(batch, self.length) if self.real is None else self.real
            after = known.new_ones(batch, length) if real is None else real
            self.real = torch.cat([before, after], dim=1)
        self.length += length

    def keep(self, rows: Tensor) -> None:
        """Drop, reorder or repeat sentences in every layer."""
        for layer in self.layers:
            layer.attn.keep(rows)
            layer.cross.keep(rows)
        if self.real is not None:
            self.real = self.real.index_select(0, rows)

    @property
    def bytes(self) -> int:
        """The memory in use for keys and values of own tokens (the buffers may be up to twice as long)."""
        used = (b[:, :, : layer.attn.length] for layer in self.layers for b in layer.attn.buffers)
        return sum(one.numel() * one.element_size() for one in used)
