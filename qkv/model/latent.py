"""Multi-head latent attention: one short latent vector per token is cached; keys and values are projected from it.

In decoding the up-projection is absorbed into the query, so that all heads read the cached latents directly.
Explained in docs/model.md, "Latent attention".
"""

import torch
from torch import Tensor, nn

from qkv.model.attention import FusedCore, join_heads, split_heads
from qkv.model.cache import GrowingCache
from qkv.model.norms import RMSNorm
from qkv.model.spec import Latent
from qkv.model.view import View


class LatentAttention(nn.Module):
    """k = [up_k(c); k_rope], v = up_v(c) with the latent c = norm(kv_down(x)); only k_rope is rotated."""

    def __init__(self, latent: Latent, d_model: int, eps: float, sharpness: float = 1.0):
        super().__init__()
        self.latent, h = latent, latent.n_heads
        self.scale = (latent.d_nope + latent.d_rope) ** -0.5 * sharpness
        self.q_proj = make_query(latent, d_model, h * (latent.d_nope + latent.d_rope), eps)
        self.kv_down = nn.Linear(d_model, latent.kv_rank + latent.d_rope, bias=False)
        self.kv_norm = RMSNorm(latent.kv_rank, eps)
        self.kv_up = nn.Linear(latent.kv_rank, h * (latent.d_nope + latent.d_value), bias=False)
        self.o_proj = nn.Linear(h * latent.d_value, d_model, bias=False)
        self.core: nn.Module = FusedCore()

    def forward(self, x: Tensor, view: View, cache: GrowingCache | None = None) -> Tensor:
        nope, rope = self.latent.d_nope, self.latent.d_rope
        q = split_heads(self.q_proj(x), self.latent.n_heads)                          # (batch, heads, query, nope+rope)
        q = torch.cat([q[..., :nope], view.turn(q[..., nope:])], dim=-1)
        c, k_rope = self.kv_down(x).split([self.latent.kv_rank, rope], dim=-1)
        c, k_rope = self.kv_norm(c)[:, None], view.turn(k_rope[:, None])              # (batch, 1, key, rank or rope)
        if cache is None:
            mixed = self.unfolded(q, c, k_rope, view)
        else:
            c, k_rope = cache.extend(c, k_rope)
            mixed = self.absorbed(q, c, k_rope, view)
        return self.o_proj(join_heads(mixed))                                         # (batch, query, d_model)

    def unfolded(self, q: Tensor, c: Tensor, k_rope: Tensor, view: View) -> Tensor:
        """Keys and values of every head are computed: cheaper when there are as many queries as keys."""
        kv = split_heads(self.kv_up(c[:, 0]), self.latent.n_heads)                    # (batch, heads, key, nope+value)
        k_nope, v = kv.split([self.latent.d_nope, self.latent.d_value], dim=-1)
        k = torch.cat([k_nope, k_rope.expand(-1, self.latent.n_heads, -1, -1)], dim=-1)
        return self.core(q, k, v, view.sight(), self.scale)                           # (batch, heads, query, value)

    def absorbed(self, q: Tensor, c: Tensor, k_rope: Tensor, view: View) -> Tensor:
        """q (U c) = (q U) c: one key and one value for all heads, the latent itself (multi-query attention)."""
        up = self.kv_up.weight.unflatten(0, (self.latent.n_heads, -1))                # (heads, nope+value, rank)
        up_k, up_v = up.split([self.latent.d_nope, self.latent.d_value], dim=1)
        q_nope, q_rope = q.split([self.latent.d_nope, self.latent.d_rope], dim=-1)
        q = torch.cat([q_nope @ up_k, q_rope], dim=-1)                                # (batch, heads, query, rank+rope)
        mixed = self.core(q, torch.cat([c, k_rope], dim=-1), c, view.sight(), self.scale)
        return mixed @ up_v.transpose(-1, -2)                                         # (batch, heads, query, value)


def make_query(latent: Latent, d_model: int, width: int, eps: float) -> nn.Module:
    """Queries by one linear map, or through a latent of their own."""
    if latent.q_rank is None:
        return nn.Linear(d_model, width, bias=False)
    down, up = nn.Linear(d_model, latent.q_rank, bias=False), nn.Linear(latent.q_rank, width, bias=False)
    return nn.Sequential(down, RMSNorm(latent.q_rank, eps), up)
