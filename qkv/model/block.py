"""A block: self-attention or another mixer, cross-attention if there is an encoder, feed-forward; each with a residual.

The residual is itself a module, so that each point of the residual stream has a name. Explained in docs/model.md,
"The stream".
"""

from typing import Any

from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import CrossAttention
from qkv.model.cache import LayerCache
from qkv.model.dropout import Dropout
from qkv.model.feed_forward import make_feed_forward
from qkv.model.mixers import make_mixer
from qkv.model.norms import make_norm
from qkv.model.view import View


class PreNorm(nn.Module):
    """x + branch(norm(x)): today's order. PostNorm, 2017's, is norm(x + branch(x))."""

    def __init__(self, norm: nn.Module, branch: nn.Module, dropout: float):
        super().__init__()
        self.norm, self.branch, self.dropout = norm, branch, Dropout(dropout)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.dropout.add(x, self.branch(self.norm(x), *context))


class PostNorm(PreNorm):
    """norm(x + branch(x)): 2017's order. PreNorm, today's, is x + branch(norm(x))."""

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.norm(self.dropout.add(x, self.branch(x, *context)))


class Block(nn.Module):
    """Self-attention (or another mixer), then the feed-forward."""

    def __init__(self, layer: s.Layer, spec: s.Spec, sees: str):
        super().__init__()
        self.attn = make_residual(layer.norm, make_mixer(layer, spec, sees), spec)
        self.ffn = make_residual(layer.norm, make_feed_forward(layer.feed_forward, spec.d_model), spec)

    def forward(self, x: Tensor, view: View, memory: Any = None, cache: LayerCache | None = None) -> Tensor:
        return self.ffn(self.attn(x, view, cache and cache.attn))  # (batch, length, d_model)


class CrossBlock(nn.Module):
    """Self-attention, then cross-attention to the encoder's memory, then the feed-forward."""

    def __init__(self, layer: s.Layer, spec: s.Spec, sees: str):
        super().__init__()
        assert layer.cross is not None
        self.attn = make_residual(layer.norm, make_mixer(layer, spec, sees), spec)
        self.cross = make_residual(layer.norm, CrossAttention(layer.cross, spec.d_model, layer.norm.eps), spec)
        self.ffn = make_residual(layer.norm, make_feed_forward(layer.feed_forward, spec.d_model), spec)

    def forward(self, x: Tensor, view: View, memory: Any, cache: LayerCache | None = None) -> Tensor:
        x = self.attn(x, view, cache and cache.attn)
        x = self.cross(x, memory.states, memory.view, cache and cache.cross)
        return self.ffn(x)  # (batch, length, d_model)


def make_residual(norm: s.Norm, branch: nn.Module, spec: s.Spec) -> PreNorm:
    residual = PreNorm if norm.place == "pre" else PostNorm
    return residual(make_norm(norm, spec.d_model), branch, spec.dropout)


def make_block(layer: s.Layer, spec: s.Spec, sees: str) -> nn.Module:
    return Block(layer, spec, sees) if layer.cross is None else CrossBlock(layer, spec, sees)
