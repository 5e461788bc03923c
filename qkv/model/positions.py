"""Where a token stands: added to the embeddings, or turned into queries and keys, or not told at all.

In: embeddings and places. Out: embeddings that know their place (`forward`), and the turn of this pass (`turn`);
the kind that has nothing to do answers with the identity. Told in docs/model.md, "Positions".
"""

import torch
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.possible import turned_width
from qkv.model.turn import NoTurn, Turn, make_turn


class NoPositions(nn.Module):
    """x stays x."""

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return x

    def turn(self, places: Tensor, dtype: torch.dtype) -> Turn:
        return NoTurn()


class SinusoidalPositions(NoPositions):
    """PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos of the same angle: a clock of many hands."""

    def __init__(self, positions: s.Sinusoidal):
        super().__init__()
        self.layout = positions.layout

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return x + sinusoids(places, x.shape[-1], self.layout).to(x.dtype)  # (batch, length, d_model)


class LearnedPositions(NoPositions):
    """A trained vector for each place."""

    def __init__(self, positions: s.Learned, max_len: int, d_model: int):
        super().__init__()
        self.first = positions.first
        self.weight = nn.Parameter(torch.empty(max_len + positions.first, d_model))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        return x + self.weight[places + self.first]  # (batch, length, d_model)


class RotaryPositions(NoPositions):
    """Embeddings stay; queries and keys are turned."""

    def __init__(self, rotary: s.Rotary, width: int):
        super().__init__()
        self.rotary, self.width = rotary, width

    def turn(self, places: Tensor, dtype: torch.dtype) -> Turn:
        return make_turn(self.rotary, self.width, places, dtype)


def sinusoids(places: Tensor, d_model: int, layout: str = "alternating") -> Tensor:
    """The sines and cosines of these places, (batch, length, d_model), in the widest type the device has."""
    wide = torch.float32 if places.device.type == "mps" else torch.float64
    even = torch.arange(0, d_model, 2, dtype=wide, device=places.device)                # 0, 2, 4, ...
    angles = places[..., None].to(wide) * torch.pow(10_000.0, -even / d_model)           # (batch, length, d_model / 2)
    if layout == "halves":
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)


def make_positions(spec: s.Spec, stack: s.Stack) -> NoPositions:
    """Each stack has its own positions."""
    match spec.positions:
        case s.Sinusoidal(): return SinusoidalPositions(spec.positions)
        case s.Learned(): return LearnedPositions(spec.positions, spec.max_len, spec.d_model)
        case s.Rotary():
            width = max(turned_width(layer.mixer, spec.positions) for layer in stack.layers)
            return RotaryPositions(spec.positions, width) if width else NoPositions()
        case s.NoPositions(): return NoPositions()
