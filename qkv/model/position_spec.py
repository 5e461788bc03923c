"""The spec of a position encoding; spec.py has the other parts.

See docs/explanation/model.md, "Positions".
"""

from dataclasses import dataclass
from typing import Literal

from qkv.model.custom_spec import Custom


@dataclass(frozen=True)
class Sinusoidal:
    """Sinusoidal position encoding (2017), added to the embeddings.

    Sines and cosines alternate, as in the paper, or are two halves, as in Marian.
    """

    layout: Literal["alternating", "halves"] = "alternating"
    kind: Literal["sinusoidal"] = "sinusoidal"


@dataclass(frozen=True)
class Learned:
    """Learned position embeddings; the first token uses row `first` (RoBERTa and BART: 2)."""

    first: int = 0
    kind: Literal["learned"] = "learned"


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation: all positions are divided by `factor`."""

    factor: float
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True)
class LlamaScaling:
    """Llama 3.1: low frequencies are divided by `factor`, high ones stay, with a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_len: int
    kind: Literal["llama3"] = "llama3"


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: low frequencies are interpolated, high ones kept, and attention scores scaled."""

    factor: float
    original_max_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # multiplies cos and sin
    mscale: float = 1.0  # multiplies the scores of latent attention
    kind: Literal["yarn"] = "yarn"


Scaling = LinearScaling | LlamaScaling | YarnScaling


@dataclass(frozen=True)
class Rotary:
    """Rotary position embedding (RoPE): scores depend on the distance of query and key only."""

    theta: float = 10_000.0
    partial_rotary_factor: float = 1.0  # fraction of each head that is rotated
    interleaved: bool = False  # pairs (2i, 2i + 1), as in the paper; False: (i, i + half)
    scaling: Scaling | None = None
    kind: Literal["rotary"] = "rotary"


@dataclass(frozen=True)
class ALiBi:
    """ALiBi: a head's score of two tokens is lowered by its slope times their distance.

    Head i of h has the slope 2^(-8 i / h). Cross-attention has none.
    """

    kind: Literal["alibi"] = "alibi"


@dataclass(frozen=True)
class NoPositions:
    """No position encoding (NoPE): only the causal mask gives an order."""

    kind: Literal["none"] = "none"


Positions = Sinusoidal | Learned | Rotary | ALiBi | NoPositions | Custom
