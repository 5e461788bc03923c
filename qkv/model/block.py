"""A block: self-attention or another mixer, optional cross-attention, feed-forward; with residuals.

Each residual connection is a module, so that each point of the residual stream has a name.
See docs/explanation/model.md, "Residual stream and hidden states".
"""

from typing import Any

from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import CrossAttention
from qkv.model.attention_context import AttentionContext
from qkv.model.cache import LayerCache
from qkv.model.dropout import Dropout
from qkv.model.feed_forward import make_feed_forward
from qkv.model.mixers import make_mixer
from qkv.model.norms import make_norm


class PreNorm(nn.Module):
    """Pre-norm residual: x + branch(norm(x)). Post-norm (2017) is norm(x + branch(x))."""

    def __init__(self, norm: nn.Module, branch: nn.Module, dropout: float):
        super().__init__()
        self.norm, self.branch, self.dropout = norm, branch, Dropout(dropout)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.dropout.add(x, self.branch(self.norm(x), *context))


class PostNorm(PreNorm):
    """Post-norm residual (2017): norm(x + branch(x)). Pre-norm is x + branch(norm(x))."""

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.norm(self.dropout.add(x, self.branch(x, *context)))


class PreNormOnly(PreNorm):
    """Pre-norm without a residual connection: branch(norm(x)), to show what the sum is for."""

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.dropout(self.branch(self.norm(x), *context))


class PostNormOnly(PreNorm):
    """Post-norm without a residual connection: norm(branch(x))."""

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return self.norm(self.dropout(self.branch(x, *context)))


class Block(nn.Module):
    """Self-attention (or another mixer), then the feed-forward."""

    def __init__(self, layer: s.Layer, spec: s.Spec, causal: bool):
        super().__init__()
        self.attn = make_residual(make_mixer(layer, spec, causal), layer, spec)
        self.ffn = make_ffn(layer, spec)

    def forward(
        self,
        x: Tensor,
        context: AttentionContext,
        memory: Any = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        return self.ffn(self.attn(x, context, cache and cache.attn))  # (batch, length, d_model)


class CrossBlock(nn.Module):
    """Self-attention, then cross-attention to the encoder's memory, then the feed-forward."""

    def __init__(self, layer: s.Layer, spec: s.Spec, causal: bool):
        super().__init__()
        assert layer.cross is not None
        self.attn = make_residual(make_mixer(layer, spec, causal), layer, spec)
        cross = CrossAttention(layer.cross, spec.d_model, layer.norm.eps)
        self.cross = make_residual(cross, layer, spec)
        self.ffn = make_ffn(layer, spec)

    def forward(
        self, x: Tensor, context: AttentionContext, memory: Any, cache: LayerCache | None = None
    ) -> Tensor:
        x = self.attn(x, context, cache and cache.attn)
        x = self.cross(x, memory.states, memory.context, cache and cache.cross)
        return self.ffn(x)                                         # (batch, length, d_model)


def make_residual(branch: nn.Module, layer: s.Layer, spec: s.Spec) -> PreNorm:
    """The branch with its norm, and its residual connection if the layer has them."""
    kinds = {
        ("pre", True): PreNorm, ("post", True): PostNorm,
        ("pre", False): PreNormOnly, ("post", False): PostNormOnly,
    }  # fmt: skip
    kind = kinds[layer.norm.placement, layer.residual]
    return kind(make_norm(layer.norm, spec.d_model), branch, spec.dropout)


def make_ffn(layer: s.Layer, spec: s.Spec) -> nn.Module:
    """The feed-forward sublayer; the identity if the layer has none."""
    if layer.feed_forward is None:
        return nn.Identity()
    return make_residual(make_feed_forward(layer.feed_forward, spec.d_model), layer, spec)
