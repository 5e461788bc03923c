"""Sliding-window attention in blocks: O(n w) operations and memory for n tokens and a window w.

A block of w queries attends to its own keys and to those of the block before it, and of the one
after it if the layer is not causal. See docs/explanation/model.md, "Sliding window".
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.model.attention_mask import AttentionMask, Kernel

if TYPE_CHECKING:
    from qkv.model.attention_context import AttentionContext


@dataclass(eq=False)
class BandMask(AttentionMask):
    """The mask of a sliding window, which is computed in blocks; `dense` has every pair.

    Padding is moved to the end of each row, so that tokens that are neighbors are in one block.
    """

    context: "AttentionContext | None" = None
    window: int = 1
    n_heads: int = 1

    @cached_property
    def dense(self) -> AttentionMask:
        """The same mask for all pairs of query and key."""
        assert self.context is not None
        return self.context.dense_mask(self.window, self.n_heads)

    def attend(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the new queries; the first keys, from the cache, have no query."""
        assert self.context is not None
        past, order = self.context.past, self.context.tokens_first
        q = F.pad(q, (0, 0, past, 0))                            # (batch, heads, key, d_head)
        if order is not None:
            q, k, v = (gather(x, order) for x in (q, k, v))
        attend = self._causal if self.context.causal else self._both
        mixed = attend(kernel, q, k, v)                          # (batch, heads, key, d_head)
        if order is not None:
            mixed = gather(mixed, order.argsort(dim=1))
        return mixed[:, :, past:]                                # (batch, heads, query, d_head)

    def _causal(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The first block attends to itself, every other one to itself and the one before."""
        w, length = self.window, q.shape[2]
        q, k, v = (F.pad(x, (0, 0, 0, -length % w)) for x in (q, k, v))  # to a multiple of w
        alone, pairs = self._local(0, w), self._local(w, w)
        first = alone.attend(kernel, q[:, :, :w], k[:, :, :w], v[:, :, :w])
        later = q[:, :, w:], k, v
        sizes = w, 2 * w, 2 * w
        blocks = (to_blocks(x, size, w) for x, size in zip(later, sizes, strict=True))
        rest = from_blocks(pairs.attend(kernel, *blocks), len(q))
        return torch.cat([first, rest], dim=2)[:, :, :length]    # (batch, heads, key, d_head)

    def _both(self, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each block attends to itself and the blocks on both sides; those outside are masked."""
        w, length, context = self.window, q.shape[2], self.context
        assert context is not None
        q = F.pad(q, (0, 0, 0, -length % w))
        k, v = (F.pad(x, (0, 0, w, w + -length % w)) for x in (k, v))
        valid = torch.ones(len(q), 1, length, 1, dtype=torch.bool, device=q.device)
        if context.attention_mask is not None and context.tokens_first is not None:
            valid = gather(context.attention_mask[:, None, :, None], context.tokens_first)
        valid = to_blocks(F.pad(valid, (0, 0, w, w + -length % w)), 3 * w, w).mT
        local = self._local(0, 3 * w)
        assert local.allowed is not None
        allowed = local.allowed[:, :, w : 2 * w] & valid         # (batch * blocks, 1, w, 3 w)
        bias = None if local.bias is None else local.bias[:, :, w : 2 * w]
        blocks = to_blocks(q, w, w), to_blocks(k, 3 * w, w), to_blocks(v, 3 * w, w)
        mixed = AttentionMask(allowed, bias=bias).attend(kernel, *blocks)
        return from_blocks(mixed, len(q))[:, :, :length]         # (batch, heads, key, d_head)

    def _local(self, past: int, length: int) -> AttentionMask:
        """The mask of `length` queries and `past` more keys before them, equal for all blocks."""
        assert self.context is not None
        context = self.context.local(past, length)
        return context.mask(self.window, self.n_heads)


def gather(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (batch, heads, key, width) in this order (batch, key)."""
    index = order[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def to_blocks(x: Tensor, size: int, step: int) -> Tensor:
    """(batch, heads, key, width) -> (batch * blocks, heads, size, width), a block every `step`."""
    blocks = x.unfold(2, size, step)                      # (batch, heads, blocks, width, size)
    return blocks.permute(0, 2, 1, 4, 3).flatten(0, 1)


def from_blocks(x: Tensor, batch: int) -> Tensor:
    """(batch * blocks, heads, size, width) -> (batch, heads, blocks * size, width)."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)
