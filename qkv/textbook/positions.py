"""Position encodings: sinusoidal (2017), learned, rotary (RoPE), and ALiBi.

See docs/explanation/model.md, "Positions".
"""

import math

import torch
from torch import Tensor, nn

__all__ = [
    "LearnedPositions", "alibi_bias", "alibi_slopes", "cos_sin",
    "frequencies", "pairs_to_halves", "rotate_halves", "rotate_pairs",
    "shift_matrix", "sinusoidal",
]


def sinusoidal(length: int, d_model: int) -> Tensor:
    """Sines and cosines of decreasing frequency, section 3.5 of the paper; (length, d_model).

    PE(pos, 2i) = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))
    """
    positions = torch.arange(length, dtype=torch.float64)
    angles = torch.outer(positions, frequencies(d_model))   # (length, d_model / 2)
    pairs = torch.stack([angles.sin(), angles.cos()], dim=-1)   # (length, d_model / 2, 2)
    return pairs.reshape(length, d_model)                   # (length, d_model), sin cos sin cos ...


def frequencies(width: int, theta: float = 10_000.0) -> Tensor:
    """One frequency for each pair of components: theta^(-2i / width), from 1 to about 1 / theta."""
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)   # (width / 2,)


def shift_matrix(distance: int, d_model: int) -> Tensor:
    """The matrix that shifts any sinusoidal position by k = distance: PE(pos + k) = M_k PE(pos).

    For each pair of components
        sin(pos + k) = sin(pos) cos(k) + cos(pos) sin(k)
        cos(pos + k) = cos(pos) cos(k) - sin(pos) sin(k)
    so a linear layer can attend to a relative position.
    """
    blocks = [
        torch.stack([
            torch.stack([angle.cos(), angle.sin()]), torch.stack([-angle.sin(), angle.cos()])
        ])
        for angle in distance * frequencies(d_model)
    ]
    return torch.block_diag(*blocks)                        # (d_model, d_model)


class LearnedPositions(nn.Module):
    """A trained vector for each position up to max_len, as in GPT-2 and BERT."""

    def __init__(self, max_len: int, d_model: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_len, d_model) * 0.02)

    def forward(self, length: int) -> Tensor:
        """The first rows of the table, to be added to the embeddings."""
        return self.weight[:length]                         # (length, d_model)


def rotate_pairs(
    x: Tensor, position_ids: Tensor | None = None, theta: float = 10_000.0
) -> Tensor:
    """RoPE as in its paper: rotate the pairs (x_2i, x_2i+1) by a = position * theta^(-2i / d).

        x' = x cos(a) - y sin(a)        y' = x sin(a) + y cos(a)

    With q at position m and k at position n, q . k depends on m - n only.
    """
    cos, sin = cos_sin(x, position_ids, theta)              # (length, d_head / 2) each
    first, second = x[..., 0::2], x[..., 1::2]              # (..., length, d_head / 2) each
    rotated = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    return rotated.flatten(-2)                              # (..., length, d_head)


def rotate_halves(
    x: Tensor, position_ids: Tensor | None = None, theta: float = 10_000.0
) -> Tensor:
    """RoPE as in most checkpoints: rotate the pairs (x_i, x_i+d/2).

    Equal to rotate_pairs with the components in another order (pairs_to_halves); the order is the
    same for q and k, so dot products are equal.
    """
    cos, sin = cos_sin(x, position_ids, theta)              # (length, d_head / 2) each
    first, second = x.chunk(2, dim=-1)                      # (..., length, d_head / 2) each
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def cos_sin(x: Tensor, position_ids: Tensor | None, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency; positions are 0, 1, 2, ... unless given."""
    if position_ids is None:
        position_ids = torch.arange(x.shape[-2], device=x.device)
    inv_freq = frequencies(x.shape[-1], theta).to(x.device)  # (d_head / 2,)
    angles = torch.outer(position_ids.double(), inv_freq)   # (length, d_head / 2)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def pairs_to_halves(d_head: int) -> Tensor:
    """The order of components from rotate_pairs to rotate_halves: even ones, then odd ones.

    >>> pairs_to_halves(6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    return torch.cat([torch.arange(0, d_head, 2), torch.arange(1, d_head, 2)])


def alibi_slopes(n_heads: int) -> Tensor:
    """One slope for each head: 2^(-8 / n), 2^(-16 / n), ..., 2^-8 for a power of two n.

    Otherwise those of the power of two below, then every other one of the power of two above.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
    """
    below = 2 ** int(math.log2(n_heads))
    first = 2.0 ** (-8 * torch.arange(1, below + 1, dtype=torch.float64) / below)
    if below == n_heads:
        return first                                        # (n_heads,)
    return torch.cat([first, alibi_slopes(2 * below)[::2]])[:n_heads]   # (n_heads,)


def alibi_bias(n_heads: int, length: int) -> Tensor:
    """What ALiBi adds to the scores before the softmax: -slope * distance of query and key.

    No position is added to the embeddings (Press et al. 2022). In a decoder the keys are at or
    before the query, so the distance is query - key.
    """
    positions = torch.arange(length, dtype=torch.float64)
    distance = (positions[:, None] - positions[None, :]).abs()   # (query, key)
    return -alibi_slopes(n_heads)[:, None, None] * distance      # (n_heads, query, key)
