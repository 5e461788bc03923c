"""Attention as in section 3.2 of "Attention is all you need" (2017): one head, then multi-head.

The fast version is qkv/model/attention.py. See docs/explanation/model.md, "Grouped-query attention
(GQA)".
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = [
    "MultiHeadAttention", "SingleHeadAttention", "join_heads", "scaled_dot_product_attention",
    "softmax", "split_heads",
]


def softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(x)_i = e^x_i / sum_j e^x_j over the unmasked entries (mask: True = may attend).

    A fully masked row gives zeros.

    >>> softmax(torch.tensor([1.0, 2.0, 3.0]))
    tensor([0.0900, 0.2447, 0.6652])
    >>> softmax(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, True, False]))
    tensor([0.2689, 0.7311, 0.0000])
    """
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    # The lowest number, not -inf: in a row of -inf only, (-inf) - (-inf) would be NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    highest = scores.amax(dim=-1, keepdim=True)             # e^-highest cancels; avoids overflow
    exponentials = torch.exp(scores - highest) * mask
    total = exponentials.sum(dim=-1, keepdim=True)          # at least e^0 = 1, or 0 if fully masked
    return exponentials / total.clamp(min=1)


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q K^T / sqrt(d_k)) V, equation 1 of the paper; returns the output and the weights.

    Without the root, q . k has variance d_k; wide heads would saturate the softmax, and gradients
    vanish. ALiBi adds a bias to the scores. In training, `dropout` sets that fraction of weights to
    zero and divides the others by 1 - dropout, so that their mean is unchanged.
    """
    d_k = k.shape[-1]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d_k)       # (..., query, key)
    if bias is not None:
        scores = scores + bias
    weights = softmax(scores, mask)                         # (..., query, key), rows sum to one
    kept = weights * torch.empty_like(weights).bernoulli_(1 - dropout) / (1 - dropout)
    return (kept if dropout else weights) @ v, weights      # (..., query, d_v)


class SingleHeadAttention(nn.Module):
    """Attention with one head of width d_model."""

    def __init__(self, d_model: int, bias: bool = True):
        super().__init__()
        self.q_proj = nn.Linear(d_model, d_model, bias)
        self.k_proj = nn.Linear(d_model, d_model, bias)
        self.v_proj = nn.Linear(d_model, d_model, bias)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Self-attention, or cross-attention to `memory`; mask is (batch, query, key)."""
        source = x if memory is None else memory            # (batch, key, d_model)
        q, k, v = self.q_proj(x), self.k_proj(source), self.v_proj(source)
        mixed, _ = scaled_dot_product_attention(q, k, v, mask)
        return mixed                                        # (batch, query, d_model)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O.

    With n_kv_heads < n_heads, groups of query heads share keys and values (GQA; 1: multi-query).
    `rotate` applies rotary positions to queries and keys.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        bias: bool = True,
        rotate: Callable[[Tensor], Tensor] | None = None,
    ):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        self.d_head = d_model // n_heads
        self.rotate = rotate
        self.q_proj = nn.Linear(d_model, self.n_heads * self.d_head, bias)
        self.k_proj = nn.Linear(d_model, self.n_kv_heads * self.d_head, bias)
        self.v_proj = nn.Linear(d_model, self.n_kv_heads * self.d_head, bias)
        self.o_proj = nn.Linear(self.n_heads * self.d_head, d_model, bias)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Self-attention, or cross-attention to `memory`; mask is (batch, 1, query, key)."""
        source = x if memory is None else memory            # (batch, key, d_model)
        q = split_heads(self.q_proj(x), self.n_heads)       # (batch, heads, query, d_head)
        k = split_heads(self.k_proj(source), self.n_kv_heads)
        v = split_heads(self.v_proj(source), self.n_kv_heads)
        if self.rotate is not None:
            q, k = self.rotate(q), self.rotate(k)
        group = self.n_heads // self.n_kv_heads             # query heads that share one key head
        k = k.repeat_interleave(group, dim=1)               # (batch, heads, key, d_head)
        v = v.repeat_interleave(group, dim=1)               # (batch, heads, key, d_head)
        mixed, _ = scaled_dot_product_attention(q, k, v, mask)
        return self.o_proj(join_heads(mixed))               # (batch, query, d_model)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(batch, length, heads * d_head) -> (batch, heads, length, d_head)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, n_heads, width // n_heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Concat(head_1, ..., head_h), the inverse of split_heads."""
    batch, n_heads, length, d_head = x.shape
    return x.transpose(1, 2).reshape(batch, length, n_heads * d_head)
