"""Positions: how a model that sees a set of tokens learns their order.

Places (0, 1, 2, ...) in; out come waves to add (2017), a table to learn, or a rotation of queries and keys (today).
Told in docs/model.md, "Positions".
"""

import torch
from torch import Tensor, nn


def sinusoidal(length: int, d_model: int) -> Tensor:
    """Waves of falling frequency, sine and cosine by turns; section 3.5 of the paper.

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model))        PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))
    """
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies(d_model))   # (length, d_model / 2)
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)   # (length, d_model / 2, 2)
    return waves.reshape(length, d_model)                   # (length, d_model), sin cos sin cos ...


def frequencies(width: int, base: float = 10_000.0) -> Tensor:
    """One frequency for each pair of components: base^(-2i / width), from 1 down to almost 1 / base."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)    # (width / 2,)


def shift_matrix(distance: int, d_model: int) -> Tensor:
    """The one matrix that moves any sinusoidal position by `distance`: PE(pos + k) = M_k PE(pos).

    Each pair of components obeys
        sin(pos + k) = sin(pos) cos(k) + cos(pos) sin(k)
        cos(pos + k) = cos(pos) cos(k) - sin(pos) sin(k)
    so a linear layer can look "k places further", wherever it stands.
    """
    turns = [
        torch.stack([torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])])
        for angle in distance * frequencies(d_model)
    ]
    return torch.block_diag(*turns)                         # (d_model, d_model)


class LearnedPositions(nn.Module):
    """A table with one trained vector for each place, as GPT-2 and BERT have it: no vector, no place beyond it."""

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_len, d_model) * 0.02)

    def forward(self, length: int) -> Tensor:
        """The first rows of the table, to be added to the embeddings."""
        return self.weight[:length]                         # (length, d_model)


def rotate_pairs(x: Tensor, places: Tensor | None = None, base: float = 10_000.0) -> Tensor:
    """RoPE as its paper tells it: the neighbours (x_2i, x_2i+1) are a point, turned by place * base^(-2i / d).

        x' = x cos(a) - y sin(a)        y' = x sin(a) + y cos(a)

    Turning q by m and k by n leaves in q . k only the difference m - n.
    """
    cos, sin = turn(x, places, base)                        # (length, d_head / 2) each
    first, second = x[..., 0::2], x[..., 1::2]              # (..., length, d_head / 2) each
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return turned.flatten(-2)                               # (..., length, d_head), neighbours side by side again


def rotate_halves(x: Tensor, places: Tensor | None = None, base: float = 10_000.0) -> Tensor:
    """RoPE as today's checkpoints store it: the points are (x_i, x_i+d/2), the first half against the second.

    It is rotate_pairs with the components in another order (pairs_to_halves), which q and k share, so that no
    dot product notices.
    """
    cos, sin = turn(x, places, base)                        # (length, d_head / 2) each
    first, second = x.chunk(2, dim=-1)                      # (..., length, d_head / 2) each
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)  # (..., length, d_head)


def turn(x: Tensor, places: Tensor | None, base: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of each place and frequency; places count from zero unless given."""
    if places is None:
        places = torch.arange(x.shape[-2], device=x.device)
    angles = torch.outer(places.double(), frequencies(x.shape[-1], base).to(x.device))  # (length, d_head / 2)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def pairs_to_halves(d_head: int) -> Tensor:
    """The order in which rotate_halves wants the components of rotate_pairs: even ones first, then odd ones.

    >>> pairs_to_halves(6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    return torch.cat([torch.arange(0, d_head, 2), torch.arange(1, d_head, 2)])
