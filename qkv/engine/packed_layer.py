"""One block as few large operations: for one new token per row, or for whole rows at once.

In: (rows, d_model). Out: the same, one block further; equal to the block's own (proven in tests/engine/test_stepper.py).
For one query two plain products are cheaper than the fused attention. Told in docs/performance.md, "Decoding".
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.engine.kv_cache import Seen
from qkv.engine.packed_weights import FastNorm, Make, fast_norm, open_norm, product, stacked, stacked_qkv, unit_norm
from qkv.model import spec as s
from qkv.model.attention import CrossAttention, GroupedAttention
from qkv.model.block import Block, CrossBlock
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.turn import Turn
from qkv.model.view import Sight

Cell = Sequence[Any]  # where the new keys and values go, and what is Seen: one layer of KeyValues.next


class FastBlock:
    """What all blocks share: residuals, the feed-forward as the last of them."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: Make = product):
        wide, self.pre_norm = block.ffn.branch, norm.place == "pre"
        assert isinstance(wide, DenseFeedForward | GatedFeedForward)
        parts = [block.attn, block.cross, block.ffn] if isinstance(block, CrossBlock) else [block.attn, block.ffn]
        # Before a matrix the gain of an RMSNorm moves into it; after the sum it has to be applied.
        opened = [open_norm(part.norm, norm) if self.pre_norm else (fast_norm(part.norm, norm), None) for part in parts]
        self.norms, self.gains = [one for one, _ in opened], [gain for _, gain in opened]
        self.gated = isinstance(wide, GatedFeedForward)
        up = [wide.gate_proj, wide.up_proj] if isinstance(wide, GatedFeedForward) else [wide.up_proj]
        self.up, self.down, self.activation = make(*stacked(up, self.gains[-1])), make(*stacked([wide.down_proj])), wide.activation

    def add(self, n: int, x: Tensor, branch: Callable[..., Tensor], *context: object) -> Tensor:
        """The residual: its norm stands before the branch, or after the sum."""
        if self.pre_norm:
            return branch(self.norms[n](x), *context).add_(x)
        return self.norms[n](branch(x, *context).add_(x))

    def think(self, x: Tensor) -> Tensor:
        """The feed-forward."""
        wide = self.up(x)
        if self.gated:
            gate, wide = wide.chunk(2, 1)
            return self.down(self.activation(gate).mul_(wide))
        return self.down(self.activation(wide))


class FastLayer(FastBlock):
    """A block that attends: its weights, those that read the same input side by side."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: Make = product):
        super().__init__(block, norm, make)
        attn = block.attn.branch
        assert isinstance(attn, GroupedAttention)
        self.heads, self.qkv, self.out = attn.heads, make(*stacked_qkv(attn, self.gains[0])), make(*stacked([attn.o_proj]))
        self.head_norm = head_norm(attn) if attn.heads.qk_norm else None
        self.cross = FastCross(block.cross.branch, self.gains[1], make) if isinstance(block, CrossBlock) else None

    def step(self, x: Tensor, cell: Cell, turn: Tensor | None, memory: Seen | None = None) -> Tensor:
        """One token of each row, (rows, d_model); `memory` is the encoder's."""
        x = self.add(0, x, self.attend, cell, turn)
        if self.cross is not None:
            x = self.add(1, x, self.cross, memory)
        return self.add(-1, x, self.think)

    def read(self, x: Tensor, rows: int, turn: Turn, sight: Sight, store: Tensor | None = None) -> Tensor:
        """All tokens of each row, (rows * length, d_model); keys and values go into `store` (2, rows, kv_heads, length, d)."""
        x = self.add(0, x, self.attend_all, rows, turn, sight, store)
        return self.add(-1, x, self.think)

    def attend(self, x: Tensor, cell: Cell, turn: Tensor | None) -> Tensor:
        """What each row gathers from its own past."""
        new_keys, new_values, seen = cell
        n_heads, n_kv_heads, d_head = self.heads.n_heads, self.heads.n_kv_heads, self.heads.d_head
        both = made = self.qkv(x).view(len(x), -1, d_head)                          # (rows, heads + 2 kv_heads, d_head)
        if self.head_norm is not None:
            both = self.head_norm(both.narrow(1, 0, n_heads + n_kv_heads))
        if turn is not None:
            both = torch.bmm(both.narrow(1, 0, n_heads + n_kv_heads), turn.expand(len(x), d_head, d_head))
        shape = len(new_keys), -1, n_kv_heads, d_head                               # (sentences, beams, kv_heads, d_head)
        new_keys.copy_(both.narrow(1, n_heads, n_kv_heads).view(shape).transpose(1, 2))
        new_values.copy_(made.narrow(1, n_heads + n_kv_heads, n_kv_heads).view(shape).transpose(1, 2))
        return self.out(mix(both.narrow(1, 0, n_heads), seen, n_kv_heads))

    def attend_all(self, x: Tensor, rows: int, turn: Turn, sight: Sight, store: Tensor | None) -> Tensor:
        """What each token gathers from its row."""
        n_heads, n_kv_heads = self.heads.n_heads, self.heads.n_kv_heads
        made = self.qkv(x).view(len(x), -1, self.heads.d_head)                      # (tokens, heads + 2 kv_heads, d_head)
        both, v = made.split((n_heads + n_kv_heads, n_kv_heads), 1)
        if self.head_norm is not None:
            both = self.head_norm(both)
        parts = (*both.split((n_heads, n_kv_heads), 1), v)
        q, k, v = (one.unflatten(0, (rows, -1)).transpose(1, 2) for one in parts)   # (rows, heads, length, d_head)
        q, k = turn(q), turn(k)
        if store is not None:
            store[0].copy_(k)
            store[1].copy_(v)
        mixed = F.scaled_dot_product_attention(
            q, k, v, sight.visible, is_causal=sight.causal, scale=1.0, enable_gqa=n_heads != n_kv_heads)
        return self.out(mixed.transpose(1, 2).reshape(len(x), -1))


class FastCross:
    """Cross-attention: the beams of a sentence are several queries to its one memory."""

    def __init__(self, cross: nn.Module, gain: Tensor | None, make: Make):
        assert isinstance(cross, CrossAttention)
        weight, bias = stacked([cross.q_proj], gain)
        scale = 1.0 if cross.heads.qk_norm else cross.scale
        self.heads, self.out = cross.heads, make(*stacked([cross.o_proj]))
        self.q = make(weight * scale, None if bias is None else bias * scale)
        self.q_norm = query_norm(cross) if cross.heads.qk_norm else None

    def __call__(self, x: Tensor, memory: Seen) -> Tensor:
        q = self.q(x).view(len(x), -1, self.heads.d_head)                           # (rows, heads, d_head)
        if self.q_norm is not None:
            q = self.q_norm(q)
        return self.out(mix(q, memory, self.heads.n_kv_heads))


def mix(q: Tensor, seen: Seen, n_kv_heads: int) -> Tensor:
    """softmax(q k^T) v for (rows, heads, d_head), joined to (rows, heads * d_head).

    The beams of a sentence, and the query heads of a group, stand as several queries before one key/value head.
    """
    rows, n_heads, d_head = q.shape
    sentences, group = len(seen.keys) // n_kv_heads, n_heads // n_kv_heads
    beams = rows // sentences
    if beams > 1:
        q = q.reshape(sentences, beams, n_kv_heads, -1).transpose(1, 2)
    scores = torch.bmm(q.reshape(sentences * n_kv_heads, beams * group, d_head), seen.keys)
    scores.view(sentences, n_kv_heads, beams, group, -1).add_(seen.hidden)
    mixed = torch.bmm(scores.softmax(2), seen.values)                               # (sentences * kv_heads, beams * group, d)
    if beams > 1:
        mixed = mixed.view(sentences, n_kv_heads, beams, -1).transpose(1, 2)
    return mixed.reshape(rows, -1)


def query_norm(attn: GroupedAttention) -> FastNorm:
    """RMSNorm of each query, which is also divided by sqrt(d_head)."""
    return norm_of_heads(attn, attn.q_norm.get_parameter("weight").detach() * attn.scale)


def head_norm(attn: GroupedAttention) -> FastNorm:
    """RMSNorm of queries and keys at once, (rows, heads + kv_heads, d_head)."""
    q, k = (norm.get_parameter("weight").detach() for norm in (attn.q_norm, attn.k_norm))
    heads = attn.heads
    return norm_of_heads(attn, torch.cat([(q * attn.scale).expand(heads.n_heads, -1), k.expand(heads.n_kv_heads, -1)]))


def norm_of_heads(attn: GroupedAttention, gain: Tensor) -> FastNorm:
    assert isinstance(attn.q_norm, nn.RMSNorm) and attn.q_norm.eps is not None
    return unit_norm(gain, attn.heads.d_head, attn.q_norm.eps)
