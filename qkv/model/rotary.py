"""Rotary position embedding (RoPE): rotate pairs of dimensions of queries and keys.

The angle is position * frequency. Other position encodings use NoRotation, the identity. The fused
rotation is in kernels/rotary.py. See docs/explanation/model.md, "Positions".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.kernels.rotary import rotate_halves
from qkv.model.spec import LinearScaling, LlamaScaling, Rotary, YarnScaling

__all__ = ["make_rotation"]


class NoRotation:
    """The identity."""

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class HalvesRotation:
    """Pairs (i, i + half), as in most checkpoints: (a, b) -> (a cos - b sin, b cos + a sin)."""

    cos: Tensor  # (batch or 1, 1, length, half)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return rotate_halves(x, self.cos, self.sin)


@dataclass(frozen=True)
class InterleavedRotation:
    """Pairs (2i, 2i + 1), as in the RoPE paper: (a, b) -> (a cos - b sin, b cos + a sin)."""

    cos: Tensor  # (batch or 1, 1, length, half)
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        cos, sin, width = self.cos, self.sin, 2 * self.cos.shape[-1]
        a, b = x[..., 0:width:2], x[..., 1:width:2]
        rotated = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
        return torch.cat([rotated, x[..., width:]], dim=-1)


Rotation = NoRotation | HalvesRotation | InterleavedRotation


def make_rotation(
    rotary: Rotary, width: int, position_ids: Tensor, dtype: torch.dtype
) -> Rotation:
    """The rotation of `width` dimensions at these positions; angles are float64 (MPS: float32)."""
    device, scaling = position_ids.device, rotary.scaling
    wide = torch.float32 if device.type == "mps" else torch.float64
    inv_freq = torch.tensor(frequencies(rotary, width), dtype=wide, device=device)  # (half,)
    angles = position_ids[:, None, :, None].to(wide) * inv_freq    # (batch or 1, 1, length, half)
    factor = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    cos, sin = (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
    return InterleavedRotation(cos, sin) if rotary.interleaved else HalvesRotation(cos, sin)


def frequencies(rotary: Rotary, width: int) -> list[float]:
    """theta^(-2i / width) for i = 0 .. width/2 - 1, with the spec's scaling for long contexts."""
    freqs = [rotary.theta ** (-2 * i / width) for i in range(width // 2)]
    match rotary.scaling:
        case None: return freqs
        case LinearScaling(factor=factor): return [freq / factor for freq in freqs]
        case LlamaScaling(): return [_llama_frequency(freq, rotary.scaling) for freq in freqs]
        case YarnScaling(): return _yarn_frequencies(freqs, width, rotary.theta, rotary.scaling)


def _llama_frequency(freq: float, scaling: LlamaScaling) -> float:
    """The frequency, divided by `factor` if its wavelength exceeds the original context."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    rotations = scaling.original_max_len * freq / (2 * math.pi)  # full ones in the original context
    smooth = min(max((rotations - low) / (high - low), 0.0), 1.0)
    return smooth * freq + (1 - smooth) * freq / scaling.factor


def _yarn_frequencies(
    freqs: list[float], width: int, theta: float, scaling: YarnScaling
) -> list[float]:
    """Low frequencies divided by `factor`, high ones unchanged, a linear ramp between."""

    def pair_index(rotations: float) -> float:
        """The pair that makes so many full rotations in the original context."""
        wavelength = scaling.original_max_len / (rotations * 2 * math.pi)
        return width * math.log(wavelength) / (2 * math.log(theta))

    low = max(math.floor(pair_index(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_index(scaling.beta_slow)), width - 1)
    ramp = [min(max((i - low) / max(high - low, 1e-3), 0.0), 1.0) for i in range(len(freqs))]
    return [r * freq / scaling.factor + (1 - r) * freq for r, freq in zip(ramp, freqs, strict=True)]
