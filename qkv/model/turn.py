"""Rotary position embedding: pairs of dimensions of queries and keys are rotated by position x frequency.

Other kinds of positions give NoTurn, the identity, so that attention needs no case distinction. The rotation of halves is
kernels/rotary.py. Explained in docs/model.md, "Positions".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.kernels.rotary import rotate_halves
from qkv.model.spec import LinearScaling, LlamaScaling, Rotary, YarnScaling


class NoTurn:
    """No rotation."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class HalvesTurn:
    """Dimension i is paired with i + half, as in most checkpoints: (a, b) -> (a cos - b sin, b cos + a sin)."""

    cos: Tensor  # (batch or 1, 1, length, half)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return rotate_halves(x, self.cos, self.sin)


@dataclass(frozen=True)
class AdjacentTurn:
    """Dimension 2i is paired with 2i + 1 (interleaved), as in the RoPE paper."""

    cos: Tensor  # (batch or 1, 1, length, half)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        width = 2 * self.cos.shape[-1]
        a, b = x[..., 0:width:2], x[..., 1:width:2]
        rotated = torch.stack([a * self.cos - b * self.sin, b * self.cos + a * self.sin], dim=-1).flatten(-2)
        return torch.cat([rotated, x[..., width:]], dim=-1)


Turn = NoTurn | HalvesTurn | AdjacentTurn


def make_turn(rotary: Rotary, width: int, places: Tensor, dtype: torch.dtype) -> Turn:
    """The rotation of `width` dimensions at these positions; angles are computed in the widest type of the device."""
    wide = torch.float32 if places.device.type == "mps" else torch.float64
    speeds = torch.tensor(frequencies(rotary, width), dtype=wide, device=places.device)  # (half,)
    angles = places[:, None, :, None].to(wide) * speeds                                  # (batch or 1, 1, length, half)
    sharp = rotary.scaling.sharpness if isinstance(rotary.scaling, YarnScaling) else 1.0
    cos, sin = (angles.cos() * sharp).to(dtype), (angles.sin() * sharp).to(dtype)
    return HalvesTurn(cos, sin) if rotary.pairs == "halves" else AdjacentTurn(cos, sin)


def frequencies(rotary: Rotary, width: int) -> list[float]:
    """base^(-2i / width) for i = 0 .. width/2 - 1, scaled for a longer context if the spec says so."""
    speeds = [rotary.base ** (-2 * i / width) for i in range(width // 2)]
    match rotary.scaling:
        case None: return speeds
        case LinearScaling(factor=factor): return [speed / factor for speed in speeds]
        case LlamaScaling(): return [_llama_speed(speed, rotary.scaling) for speed in speeds]
        case YarnScaling(): return _yarn_speeds(speeds, width, rotary.base, rotary.scaling)


def _llama_speed(speed: float, scaling: LlamaScaling) -> float:
    turns = scaling.first_len * speed / (2 * math.pi)  # full rotations of this pair in the original context
    kept = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
    kept = min(max(kept, 0.0), 1.0)
    return kept * speed + (1 - kept) * speed / scaling.factor


def _yarn_speeds(speeds: list[float], width: int, base: float, scaling: YarnScaling) -> list[float]:
    def pair_that_turns(times: float) -> float:
        return width * math.log(scaling.first_len / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), width - 1)
    slowed = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(len(speeds))]
    return [share * speed / scaling.factor + (1 - share) * speed for share, speed in zip(slowed, speeds, strict=True)]
