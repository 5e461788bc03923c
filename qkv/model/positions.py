"""Position encodings: sinusoidal, learned, rotary, ALiBi or none.

`forward` adds positions to the embeddings, `rotation` gives the rotation of queries and keys, each
the identity for the kinds that do not use it; `alibi` says whether scores have its bias.
See docs/explanation/model.md, "Positions".
"""

import torch
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.check_spec import rotated_width
from qkv.model.custom import make_custom
from qkv.model.rotary import NoRotation, Rotation, make_rotation

__all__ = ["NoPositions"]


class NoPositions(nn.Module):
    """No position encoding: the identity."""

    alibi = False

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x

    def rotation(self, position_ids: Tensor, dtype: torch.dtype) -> Rotation:
        return NoRotation()


class SinusoidalPositions(NoPositions):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(p / 10000^(2i/d))."""

    def __init__(self, positions: s.Sinusoidal):
        super().__init__()
        self.layout = positions.layout

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + sinusoids(position_ids, x.shape[-1], self.layout).to(x.dtype)


class LearnedPositions(NoPositions):
    """A trained vector for each position."""

    def __init__(self, positions: s.Learned, max_len: int, d_model: int):
        super().__init__()
        self.first = positions.first
        self.weight = nn.Parameter(torch.empty(max_len + positions.first, d_model))

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + self.weight[position_ids + self.first]          # (batch, length, d_model)


class RotaryPositions(NoPositions):
    """RoPE: embeddings stay unchanged, queries and keys are rotated."""

    def __init__(self, rotary: s.Rotary, width: int):
        super().__init__()
        self.rotary, self.width = rotary, width

    def rotation(self, position_ids: Tensor, dtype: torch.dtype) -> Rotation:
        return make_rotation(self.rotary, self.width, position_ids, dtype)


class AlibiPositions(NoPositions):
    """ALiBi: embeddings, queries and keys stay unchanged; the attention context has the bias."""

    alibi = True


def sinusoids(position_ids: Tensor, d_model: int, layout: str = "alternating") -> Tensor:
    """Sines and cosines of these positions, (batch, length, d_model), in float64 (MPS: float32)."""
    device = position_ids.device
    dtype = torch.float32 if device.type == "mps" else torch.float64
    even = torch.arange(0, d_model, 2, dtype=dtype, device=device)  # 0, 2, 4, ...
    frequencies = torch.pow(10_000.0, -even / d_model)
    angles = position_ids[..., None].to(dtype) * frequencies       # (batch, length, d_model / 2)
    if layout == "halves":
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def make_positions(spec: s.Spec, stack: s.Stack) -> NoPositions:
    """The position encoding of a stack; each stack has its own."""
    match spec.positions:
        case s.Sinusoidal(): return SinusoidalPositions(spec.positions)
        case s.Learned(): return LearnedPositions(spec.positions, spec.max_len, spec.d_model)
        case s.Rotary():
            width = max(rotated_width(layer.mixer, spec.positions) for layer in stack.layers)
            return RotaryPositions(spec.positions, width) if width else NoPositions()
        case s.ALiBi(): return AlibiPositions()
        case s.NoPositions(): return NoPositions()
        case s.Custom(): return make_custom(spec.positions, NoPositions, spec.d_model)


def max_positions(spec: s.Spec, stack: s.Stack) -> int | None:
    """The longest sequence; None without learned positions and token MLPs, which have tables."""
    learned = isinstance(spec.positions, s.Learned)
    has_table = learned or any(isinstance(layer.mixer, s.TokenMlp) for layer in stack.layers)
    return spec.max_len if has_table else None
