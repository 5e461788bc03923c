"""What could stand in attention's place: recurrence, convolution, an MLP across places, plain pooling (MetaFormer).

In: the stream. Out: the stream with tokens mixed. They are here to be compared, so they are simple: real tokens are
moved together first, so that padding never stands between them. Told in docs/model.md, "Mixers".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import GroupedAttention
from qkv.model.cache import GrowingCache
from qkv.model.latent import LatentAttention
from qkv.model.view import View


class PlaceMixer(nn.Module):
    """Moves real tokens together, lets `mix` work on them, and moves them back."""

    def forward(self, x: Tensor, view: View, cache: GrowingCache | None = None) -> Tensor:
        n_new = x.shape[1]
        if cache is not None:
            x = cache.extend(x[:, None])[0][:, 0]                                # (batch, all so far, d_model)
        if view.real is None:
            return self.mix(x, torch.full((len(x),), x.shape[1], device=x.device))[:, -n_new:]
        order = (~view.real).long().argsort(dim=1, stable=True)                  # real tokens first, in their order
        together = x.gather(1, order[..., None].expand_as(x)) * view.real.gather(1, order)[..., None]
        mixed = self.mix(together, view.real.sum(dim=1))
        back = order.argsort(dim=1)
        return mixed.gather(1, back[..., None].expand_as(mixed))[:, -n_new:]     # (batch, query, d_model)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(batch, length, d_model) with `lengths` real tokens in each row, the rest zeros -> the same shape."""
        raise AssertionError("each kind says how")


class RecurrentMixer(PlaceMixer):
    """h_t from h_(t-1) and x_t: one step after the other; where all may be seen, a second one runs backwards."""

    def __init__(self, recurrent: s.Recurrent, d_model: int, sees: str):
        super().__init__()
        cell = nn.LSTM if recurrent.cell == "lstm" else nn.GRU
        width = d_model if sees == "past" else d_model // 2
        self.onward = cell(d_model, width, batch_first=True)
        self.backward_ = cell(d_model, width, batch_first=True) if sees == "all" else None

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        onward = self.onward(x)[0]                                               # (batch, length, width)
        if self.backward_ is None:
            return onward
        place = torch.arange(x.shape[1], device=x.device)[None]                  # (1, length)
        mirror = torch.where(place < lengths[:, None], lengths[:, None] - 1 - place, place)[..., None]
        back = self.backward_(x.gather(1, mirror.expand_as(x)))[0]
        return torch.cat([onward, back.gather(1, mirror.expand_as(back))], dim=-1)


class ConvolutionMixer(PlaceMixer):
    """y_t = sum over `width` places of W_j x_(t+j): the last places only, or centred."""

    def __init__(self, convolution: s.Convolution, d_model: int, sees: str):
        super().__init__()
        width = convolution.width
        self.pad = (width - 1, 0) if sees == "past" else ((width - 1) // 2, width // 2)
        self.conv = nn.Conv1d(d_model, d_model, width)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), self.pad)).transpose(1, 2)     # (batch, length, d_model)


class TokenMlpMixer(PlaceMixer):
    """y = W_down gelu(W_up x) across places, the same for every channel; lower triangles where the future is hidden."""

    def __init__(self, max_len: int, sees: str):
        super().__init__()
        self.sees = sees
        self.up_proj = nn.Parameter(torch.empty(max_len, max_len))
        self.down_proj = nn.Parameter(torch.empty(max_len, max_len))

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        n = x.shape[1]
        up, down = self.up_proj[:n, :n], self.down_proj[:n, :n]
        if self.sees == "past":
            up, down = up.tril(), down.tril()
        real = (torch.arange(n, device=x.device)[None] < lengths[:, None])[..., None]
        return down @ (F.gelu(up @ x) * real)                                    # (batch, length, d_model)


class PoolingMixer(PlaceMixer):
    """mean of the neighbours minus the token itself."""

    def __init__(self, pooling: s.Pooling, sees: str):
        super().__init__()
        width = pooling.width
        self.width, self.pad = width, (width - 1, 0) if sees == "past" else ((width - 1) // 2, width // 2)

    def mix(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = (torch.arange(x.shape[1], device=x.device)[None] < lengths[:, None]).to(x.dtype)  # (batch, length)
        summed = F.avg_pool1d(F.pad(x.transpose(1, 2), self.pad), self.width, 1)                 # (batch, d, length)
        counted = F.avg_pool1d(F.pad(real[:, None], self.pad), self.width, 1)                    # (batch, 1, length)
        return (summed / counted.clamp(min=1 / self.width)).transpose(1, 2) - x


def make_mixer(layer: s.Layer, spec: s.Spec, sees: str) -> nn.Module:
    """The mixer of a layer; attention is one of them."""
    scaling = spec.positions.scaling if isinstance(spec.positions, s.Rotary) else None
    sharpness = scaling.score_sharpness if isinstance(scaling, s.YarnScaling) else 1.0
    match layer.mixer:
        case s.Heads(): return GroupedAttention(layer.mixer, spec.d_model, layer.norm.eps)
        case s.Latent(): return LatentAttention(layer.mixer, spec.d_model, layer.norm.eps, sharpness)
        case s.Recurrent(): return RecurrentMixer(layer.mixer, spec.d_model, sees)
        case s.Convolution(): return ConvolutionMixer(layer.mixer, spec.d_model, sees)
        case s.TokenMlp(): return TokenMlpMixer(spec.max_len, sees)
        case s.Pooling(): return PoolingMixer(layer.mixer, sees)
