"""ALiBi: attention scores are lowered in proportion to the distance of query and key.

Other position encodings have no such bias. See docs/explanation/model.md, "Positions".
"""

import torch
from torch import Tensor


def slopes(n_heads: int) -> list[float]:
    """2^(-8 i / n_heads) for i = 1 .. n_heads; the paper's rule if that is no power of two.

    The heads beyond the largest power of two, n, have every other slope of a model of 2 n heads.

    >>> slopes(3)
    [0.0625, 0.00390625, 0.25]
    """
    n = 2 ** (n_heads.bit_length() - 1)
    regular = [2 ** (-8 * i / n) for i in range(1, n + 1)]
    between = [2 ** (-4 * i / n) for i in range(1, 2 * n, 2)]
    return regular + between[: n_heads - n]


def alibi_bias(n_heads: int, query: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
    """-slope |query position - key position|: positions (batch or 1, query or key)."""
    distance = (query[:, None, :, None] - key[:, None, None, :]).abs().to(dtype)
    slope = torch.tensor(slopes(n_heads), dtype=dtype, device=query.device)
    return -slope[:, None, None] * distance                      # (batch or 1, heads, query, key)
