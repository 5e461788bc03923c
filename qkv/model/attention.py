"""Attention: softmax(q k^T / sqrt(d_head)) v for each head, joined by o_proj.

Self-attention takes q, k and v from the residual stream, cross-attention k and v from the encoder's
memory. See docs/explanation/model.md, "Grouped-query attention (GQA)".
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.attention_context import AttentionContext
from qkv.model.attention_mask import AttentionMask
from qkv.model.cache import FixedCache, GrowingCache, WindowCache
from qkv.model.norms import RMSNorm
from qkv.model.spec import Attention

__all__ = ["EagerCore", "GroupedQueryAttention", "SdpaCore"]


class SdpaCore(nn.Module):
    """softmax(q k^T * scale) v by torch's fused kernel; a fully masked row gives zeros.

    In training, weights are dropped with probability `dropout`, and then the kernel is not fused.
    """

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
        grouped, dropout = q.shape[1] != k.shape[1], self.dropout if self.training else 0.0
        kernel = partial(_sdpa, dropout=dropout, scale=scale, grouped=grouped)
        return mask.attend(kernel, q, k, v)                      # (batch, heads, query, v_head_dim)


def _sdpa(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, *,
    dropout: float, scale: float, grouped: bool,
) -> Tensor:  # fmt: skip
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout, is_causal, scale=scale, enable_gqa=grouped
    )


class EagerCore(nn.Module):
    """The same step by step; each step is a module, so that a recording can name it."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = dropout
        self.q, self.k, self.v = (nn.Identity() for _ in range(3))
        self.scores, self.biased, self.masked = (nn.Identity() for _ in range(3))
        self.weights, self.mixed = nn.Identity(), nn.Identity()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
        group, mask = q.shape[1] // k.shape[1], mask.dense
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q, k, v = self.q(q), self.k(k), self.v(v)
        scores = self.scores(q @ k.transpose(-1, -2) * scale)    # (batch, heads, query, key)
        if mask.bias is not None:
            scores = self.biased(scores + mask.bias)
        allowed = mask.allowed
        if allowed is None:
            all_pairs = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
            allowed = all_pairs.tril() if mask.is_causal else all_pairs
        masked = self.masked(scores.masked_fill(~allowed, -math.inf))
        empty_rows = ~allowed.any(-1, keepdim=True)  # their softmax is 0/0: weights become zeros
        weights = self.weights(masked.softmax(dim=-1).masked_fill(empty_rows, 0.0))
        weights = F.dropout(weights, self.dropout, self.training)
        return self.mixed(weights @ v)                           # (batch, heads, query, v_head_dim)


class GroupedQueryAttention(nn.Module):
    """Multi-head attention in which groups of query heads share one key/value head (GQA)."""

    def __init__(self, heads: Attention, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.heads, self.scale = heads, heads.d_head**-0.5
        self.q_proj = nn.Linear(d_model, heads.n_heads * heads.d_head, heads.bias)
        self.k_proj = nn.Linear(d_model, heads.n_kv_heads * heads.d_head, heads.bias)
        self.v_proj = nn.Linear(d_model, heads.n_kv_heads * heads.d_head, heads.bias)
        self.o_proj = nn.Linear(heads.n_heads * heads.d_head, d_model, heads.out_bias)
        self.q_norm = RMSNorm(heads.d_head, eps) if heads.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(heads.d_head, eps) if heads.qk_norm else nn.Identity()
        # The explorer uses EagerCore, which shows its weights.
        self.core: nn.Module = SdpaCore(heads.dropout)

    def queries(self, x: Tensor) -> Tensor:
        q = split_heads(self.q_proj(x), self.heads.n_heads)
        return self.q_norm(q)                                    # (batch, heads, query, d_head)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k = split_heads(self.k_proj(x), self.heads.n_kv_heads)
        v = split_heads(self.v_proj(x), self.heads.n_kv_heads)
        return self.k_norm(k), v                                 # (batch, kv_heads, key, d_head)

    def new_cache(self) -> GrowingCache | WindowCache:
        """The cache of one sequence of steps: of all tokens, or of those in the window."""
        window = self.heads.window
        return GrowingCache() if window is None else WindowCache(window)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        cache: GrowingCache | WindowCache | None = None,
    ) -> Tensor:
        q, (k, v) = self.queries(x), self.keys_values(x)
        q, k = context.rotate(q), context.rotate(k)
        if cache is not None:
            (k, v), context = cache.extend_with(context, k, v)   # key axis: all, or the window's
        mask = context.mask(self.heads.window, self.heads.n_heads)
        mixed = self.core(q, k, v, mask, self.scale)             # (batch, heads, query, d_head)
        return self.o_proj(join_heads(mixed))                    # (batch, query, d_model)


class CrossAttention(GroupedQueryAttention):
    """Keys and values come from the encoder's memory.

    Nothing is rotated: the positions of the two sequences are unrelated.
    """

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, context: AttentionContext, cache: FixedCache | None = None
    ) -> Tensor:
        k, v = (cache or FixedCache()).get_or_compute(lambda: self.keys_values(memory))
        mixed = self.core(self.queries(x), k, v, context.mask(), self.scale)
        return self.o_proj(join_heads(mixed))                    # (batch, query, d_model)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(batch, length, heads * d_head) -> (batch, heads, length, d_head)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, d_head) -> (batch, length, heads * d_head)."""
    return x.transpose(1, 2).flatten(2)
