"""Token mixers: attention, or an RNN, convolution, token MLP or pooling (MetaFormer).

They are for comparison and simple: padding is moved to the end of each row before mixing.
See docs/explanation/model.md, "Other token mixers".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from qkv.model import spec as s
from qkv.model.attention import GroupedQueryAttention
from qkv.model.attention_context import AttentionContext
from qkv.model.cache import GrowingCache, StateCache, WindowCache
from qkv.model.custom import make_custom
from qkv.model.latent import MultiHeadLatentAttention

__all__ = ["TokenMixer"]


class TokenMixer(nn.Module):
    """Moves padding to the end of each row, calls `mix`, and restores the order."""

    reach: int | None = None  # positions before a token that it depends on; None: all

    def new_cache(self) -> GrowingCache | WindowCache | StateCache:
        """The cache of one sequence of steps: of all inputs, or of those within reach."""
        return GrowingCache() if self.reach is None else WindowCache(self.reach + 1)

    def forward(self, x: Tensor, context: AttentionContext, cache: Any = None) -> Tensor:
        n_new = x.shape[1]
        if cache is not None:
            (inputs,), context = cache.extend_with(context, x[:, None])
            x = inputs[:, 0]                                       # (batch, in reach, d_model)
        mask = context.attention_mask
        if mask is None:
            return self.mix(x, x.new_ones(x.shape[:2], dtype=torch.bool))[:, -n_new:]
        order = tokens_first(mask)                                 # (batch, length)
        mask = mask.gather(1, order)
        mixed = self.mix(reordered(x, order) * mask[..., None], mask)
        return reordered(mixed, order.argsort(dim=1))[:, -n_new:]  # (batch, query, d_model)

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same shape; mask (batch, length): True = token."""
        raise NotImplementedError


class RecurrentMixer(TokenMixer):
    """LSTM or GRU: h_t from h_(t-1) and x_t; bidirectional without a causal mask."""

    def __init__(self, recurrent: s.Recurrent, d_model: int, causal: bool):
        super().__init__()
        cell = nn.LSTM if recurrent.cell == "lstm" else nn.GRU
        width = d_model if causal else d_model // 2
        self.onward = cell(d_model, width, batch_first=True)
        self.backward_ = cell(d_model, width, batch_first=True) if not causal else None

    def new_cache(self) -> GrowingCache | WindowCache | StateCache:
        """The state of the recurrence, which replaces all earlier tokens; causal only."""
        return StateCache() if self.backward_ is None else GrowingCache()

    def forward(self, x: Tensor, context: AttentionContext, cache: Any = None) -> Tensor:
        if cache is None or self.backward_ is not None:
            return super().forward(x, context, cache)
        if context.attention_mask is None:
            y, cache.tensors = self.resume(x, cache.tensors)
            return y                                               # (batch, query, d_model)
        mask = context.attention_mask[:, context.past :]           # (batch, query)
        order, lengths = tokens_first(mask), mask.sum(dim=1)
        # A packed sequence has at least one token; rows without any keep their state.
        packed = pack_padded_sequence(
            reordered(x, order), lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False
        )
        y, after = self.resume(packed, cache.tensors)
        before = cache.tensors or tuple(map(torch.zeros_like, after))
        has_tokens, pairs = (lengths > 0)[:, None], zip(after, before, strict=True)
        cache.tensors = tuple(torch.where(has_tokens, new, old) for new, old in pairs)
        y = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0]
        return reordered(y, order.argsort(dim=1))                  # (batch, query, d_model)

    def resume(self, x: Any, state: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...]]:
        """The outputs for x, which follows the tokens of `state`, and the state after them."""
        first = tuple(tensor[None] for tensor in state)            # (1, batch, width) each
        is_lstm = isinstance(self.onward, nn.LSTM)
        y, last = self.onward(x, (first if is_lstm else first[0]) if state else None)
        return y, tuple(tensor[0] for tensor in (last if is_lstm else (last,)))

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        forward = self.onward(x)[0]                                # (batch, length, width)
        if self.backward_ is None:
            return forward
        position, n = torch.arange(x.shape[1], device=x.device), mask.sum(dim=1, keepdim=True)
        reverse = torch.where(mask, n - 1 - position, position)[..., None]
        backward = self.backward_(x.gather(1, reverse.expand_as(x)))[0]
        backward = backward.gather(1, reverse.expand_as(backward))
        return torch.cat([forward, backward], dim=-1)              # (batch, length, d_model)


class ConvolutionMixer(TokenMixer):
    """y_t = sum over `width` positions of W_j x_(t + dilation j): the past if causal, or both."""

    def __init__(self, convolution: s.Convolution, d_model: int, causal: bool):
        super().__init__()
        self.pad = padding(convolution.width, causal, convolution.dilation)
        self.reach = self.pad[0] if causal else None
        self.conv = nn.Conv1d(d_model, d_model, convolution.width, dilation=convolution.dilation)

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.conv(F.pad(x.transpose(1, 2), self.pad))          # (batch, d_model, length)
        return y.transpose(1, 2)                                   # (batch, length, d_model)


class TokenMlpMixer(TokenMixer):
    """y = W_down gelu(W_up x) across positions, as in MLP-Mixer; lower triangular if causal."""

    def __init__(self, max_len: int, causal: bool):
        super().__init__()
        self.causal = causal
        self.up_proj = nn.Parameter(torch.empty(max_len, max_len))
        self.down_proj = nn.Parameter(torch.empty(max_len, max_len))

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        n = x.shape[1]
        up, down = self.up_proj[:n, :n], self.down_proj[:n, :n]
        if self.causal:
            up, down = up.tril(), down.tril()
        return down @ (F.gelu(up @ x) * mask[..., None])           # (batch, length, d_model)


class PoolingMixer(TokenMixer):
    """The mean of `width` neighbors minus the token itself."""

    def __init__(self, pooling: s.Pooling, causal: bool):
        super().__init__()
        self.width, self.pad = pooling.width, padding(pooling.width, causal)
        self.reach = self.pad[0] if causal else None

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        tokens = mask.to(x.dtype)[:, None]                         # (batch, 1, length)
        means = F.avg_pool1d(F.pad(x.transpose(1, 2), self.pad), self.width, 1)
        fractions = F.avg_pool1d(F.pad(tokens, self.pad), self.width, 1)
        means = means / fractions.clamp(min=1 / self.width)        # (batch, d_model, length)
        return means.transpose(1, 2) - x                           # (batch, length, d_model)


def tokens_first(mask: Tensor) -> Tensor:
    """The order (batch, length) that moves padding to the end of each row."""
    return (~mask).long().argsort(dim=1, stable=True)


def reordered(x: Tensor, order: Tensor) -> Tensor:
    """The tokens of x (batch, length, width) in this order."""
    return x.gather(1, order[..., None].expand_as(x))


def padding(width: int, causal: bool, dilation: int = 1) -> tuple[int, int]:
    """Zeros before and after a row, for windows of `width`: the past if causal, else centered."""
    before, after = (width - 1, 0) if causal else ((width - 1) // 2, width // 2)
    return before * dilation, after * dilation


def make_mixer(layer: s.Layer, spec: s.Spec, causal: bool) -> nn.Module:
    """The token mixer of a layer."""
    mixer, d_model, eps = layer.mixer, spec.d_model, layer.norm.eps
    scaling = spec.positions.scaling if isinstance(spec.positions, s.Rotary) else None
    mscale = scaling.mscale if isinstance(scaling, s.YarnScaling) else 1.0
    match mixer:
        case s.Attention(): return GroupedQueryAttention(mixer, d_model, eps)
        case s.LatentAttention(): return MultiHeadLatentAttention(mixer, d_model, eps, mscale)
        case s.Recurrent(): return RecurrentMixer(mixer, d_model, causal)
        case s.Convolution(): return ConvolutionMixer(mixer, d_model, causal)
        case s.TokenMlp(): return TokenMlpMixer(spec.max_len, causal)
        case s.Pooling(): return PoolingMixer(mixer, causal)
        case s.Custom(): return make_custom(mixer, nn.Module, d_model, causal)
