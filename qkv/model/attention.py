"""Attention: softmax(q k^T / sqrt(d_head)) v for each head, joined by o_proj.

Self-attention takes q, k and v from the residual stream, cross-attention k and v from the encoder's memory.
Explained in docs/model.md, "Attention".
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.cache import FixedCache, GrowingCache
from qkv.model.norms import RMSNorm
from qkv.model.spec import Heads
from qkv.model.view import Sight, View


class FusedCore(nn.Module):
    """softmax(q k^T * scale) v in one kernel; a row that may attend to nothing gives zeros."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, sight.visible, is_causal=sight.causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )  # (batch, heads, query, d_value)


class ExplainedCore(nn.Module):
    """The same step by step; each step is a module, so that a recording can name it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Identity(), nn.Identity(), nn.Identity()
        self.scores, self.masked, self.weights, self.mixed = nn.Identity(), nn.Identity(), nn.Identity(), nn.Identity()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float) -> Tensor:
        group = q.shape[1] // k.shape[1]
        q, k, v = self.q(q), self.k(k.repeat_interleave(group, 1)), self.v(v.repeat_interleave(group, 1))
        scores = self.scores(q @ k.transpose(-1, -2) * scale)                # (batch, heads, query, key)
        visible = sight.visible
        if visible is None:
            everything = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
            visible = everything.tril() if sight.causal else everything
        masked = self.masked(scores.masked_fill(~visible, -math.inf))
        # A row that may attend to nothing would be 0/0: its weights are zeros.
        weights = self.weights(masked.softmax(dim=-1).masked_fill(~visible.any(-1, keepdim=True), 0.0))
        return self.mixed(weights @ v)                                       # (batch, heads, query, d_value)


class GroupedAttention(nn.Module):
    """Multi-head attention in which groups of query heads share one key/value head."""

    def __init__(self, heads: Heads, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.heads, self.scale = heads, heads.d_head**-0.5
        self.q_proj = nn.Linear(d_model, heads.n_heads * heads.d_head, heads.bias)
        self.k_proj = nn.Linear(d_model, heads.n_kv_heads * heads.d_head, heads.bias)
        self.v_proj = nn.Linear(d_model, heads.n_kv_heads * heads.d_head, heads.bias)
        self.o_proj = nn.Linear(heads.n_heads * heads.d_head, d_model, heads.out_bias)
        self.q_norm = RMSNorm(heads.d_head, eps) if heads.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(heads.d_head, eps) if heads.qk_norm else nn.Identity()
        self.core: nn.Module = FusedCore()  # the explorer swaps in ExplainedCore, which shows its weights

    def queries(self, x: Tensor) -> Tensor:
        return self.q_norm(split_heads(self.q_proj(x), self.heads.n_heads))       # (batch, heads, query, d_head)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k = self.k_norm(split_heads(self.k_proj(x), self.heads.n_kv_heads))       # (batch, kv_heads, key, d_head)
        return k, split_heads(self.v_proj(x), self.heads.n_kv_heads)

    def forward(self, x: Tensor, view: View, cache: GrowingCache | None = None) -> Tensor:
        q, (k, v) = self.queries(x), self.keys_values(x)
        q, k = view.turn(q), view.turn(k)
        if cache is not None:
            k, v = cache.extend(k, v)                                             # key axis: all so far
        mixed = self.core(q, k, v, view.sight(self.heads.window), self.scale)     # (batch, heads, query, d_head)
        return self.o_proj(join_heads(mixed))                                     # (batch, query, d_model)


class CrossAttention(GroupedAttention):
    """Keys and values are the encoder's; nothing is rotated: the positions of the two sequences are unrelated."""

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, view: View, cache: FixedCache | None = None
    ) -> Tensor:
        cache = cache if cache is not None else FixedCache()
        k, v = cache.remember(lambda: self.keys_values(memory))
        mixed = self.core(self.queries(x), k, v, view.sight(self.heads.window), self.scale)
        return self.o_proj(join_heads(mixed))                                     # (batch, query, d_model)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(batch, length, heads * d_head) -> (batch, heads, length, d_head)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, d_head) -> (batch, length, heads * d_head)."""
    return x.transpose(1, 2).flatten(2)
