"""Multi-head latent attention (MLA): one low-rank latent vector per token is cached.

Keys and values are projected from the latent. In decoding the up-projection is absorbed into the
query, so that all heads attend to the cached latents directly.
See docs/explanation/model.md, "Multi-head latent attention (MLA)".
"""

import torch
from torch import Tensor, nn

from qkv.model.attention import SdpaCore, join_heads, split_heads
from qkv.model.attention_context import AttentionContext
from qkv.model.cache import GrowingCache
from qkv.model.norms import RMSNorm
from qkv.model.spec import LatentAttention


class MultiHeadLatentAttention(nn.Module):
    """k = [up_k(c); k_rope], v = up_v(c), c = norm(kv_down(x)); RoPE rotates only k_rope."""

    def __init__(self, latent: LatentAttention, d_model: int, eps: float, mscale: float = 1.0):
        super().__init__()
        self.latent, h, rank = latent, latent.n_heads, latent.kv_lora_rank
        nope, rope, value = latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim
        self.scale = (nope + rope) ** -0.5 * mscale
        self.q_proj = make_query(latent, d_model, h * (nope + rope), eps)
        self.kv_down = nn.Linear(d_model, rank + rope, bias=False)
        self.kv_norm = RMSNorm(rank, eps)
        self.kv_up = nn.Linear(rank, h * (nope + value), bias=False)
        self.o_proj = nn.Linear(h * value, d_model, bias=False)
        self.core: nn.Module = SdpaCore()

    def forward(
        self, x: Tensor, context: AttentionContext, cache: GrowingCache | None = None
    ) -> Tensor:
        nope, rope = self.latent.qk_nope_head_dim, self.latent.qk_rope_head_dim
        q = split_heads(self.q_proj(x), self.latent.n_heads)      # (batch, heads, query, nope+rope)
        q = torch.cat([q[..., :nope], context.rotate(q[..., nope:])], dim=-1)
        c, k_rope = self.kv_down(x).split([self.latent.kv_lora_rank, rope], dim=-1)
        c = self.kv_norm(c)[:, None]                              # (batch, 1, key, rank)
        k_rope = context.rotate(k_rope[:, None])                  # (batch, 1, key, rope)
        if cache is None:
            mixed = self.expanded(q, c, k_rope, context)
        else:
            c, k_rope = cache.extend(c, k_rope)
            mixed = self.absorbed(q, c, k_rope, context)
        return self.o_proj(join_heads(mixed))                     # (batch, query, d_model)

    def expanded(self, q: Tensor, c: Tensor, k_rope: Tensor, context: AttentionContext) -> Tensor:
        """Project keys and values of every head: cheaper with as many queries as keys (prefill)."""
        h, nope, value = self.latent.n_heads, self.latent.qk_nope_head_dim, self.latent.v_head_dim
        kv = split_heads(self.kv_up(c[:, 0]), h)                  # (batch, heads, key, nope+value)
        k_nope, v = kv.split([nope, value], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, h, -1, -1)], dim=-1)
        return self.core(q, k, v, context.mask(), self.scale)     # (batch, heads, query, value)

    def absorbed(self, q: Tensor, c: Tensor, k_rope: Tensor, context: AttentionContext) -> Tensor:
        """q (U c) = (q U) c: the latent is the one key and value of all heads (multi-query)."""
        h, nope, value = self.latent.n_heads, self.latent.qk_nope_head_dim, self.latent.v_head_dim
        up = self.kv_up.weight.unflatten(0, (h, -1))              # (heads, nope+value, rank)
        up_k, up_v = up.split([nope, value], dim=1)
        q_nope, q_rope = q.split([nope, self.latent.qk_rope_head_dim], dim=-1)
        q = torch.cat([q_nope @ up_k, q_rope], dim=-1)            # (batch, heads, query, rank+rope)
        k = torch.cat([c, k_rope], dim=-1)                        # (batch, 1, key, rank+rope)
        mixed = self.core(q, k, c, context.mask(), self.scale)    # (batch, heads, query, rank)
        return mixed @ up_v.transpose(-1, -2)                     # (batch, heads, query, value)


def make_query(latent: LatentAttention, d_model: int, width: int, eps: float) -> nn.Module:
    """The query projection: one linear map, or a low-rank one with a norm between."""
    rank = latent.q_lora_rank
    if rank is None:
        return nn.Linear(d_model, width, bias=False)
    down, up = nn.Linear(d_model, rank, bias=False), nn.Linear(rank, width, bias=False)
    return nn.Sequential(down, RMSNorm(rank, eps), up)
