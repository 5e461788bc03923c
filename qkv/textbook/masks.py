"""Attention masks: boolean tensors of rows (queries) and columns (keys), True = may attend.

`&` combines two masks. See docs/explanation/model.md, "Attention mask".
"""

import torch
from torch import Tensor

__all__ = ["causal_mask", "combined_mask", "padding_mask", "window_mask"]


def padding_mask(attention_mask: Tensor) -> Tensor:
    """Queries may attend to tokens, not to padding: attention_mask (batch, key), True = token.

    >>> padding_mask(torch.tensor([[5, 7, 0]]) != 0)
    tensor([[[[ True,  True, False]]]])
    """
    return attention_mask[:, None, None, :]                 # (batch, 1, 1, key)


def causal_mask(length: int) -> Tensor:
    """Every query may attend to itself and the past: key <= query.

    >>> causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    positions = torch.arange(length)
    return positions[None, :] <= positions[:, None]         # (query, key)


def combined_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """The decoder's mask: causal, without padding."""
    causal = causal_mask(ids.shape[1]).to(ids.device)       # (query, key)
    return causal & padding_mask(ids != pad_id)             # (batch, 1, query, key)


def window_mask(length: int, window: int) -> Tensor:
    """Sliding window: queries attend to keys at a distance below `window`, on both sides.

    The window of a decoder is window_mask(...) & causal_mask(...).

    >>> window_mask(3, 2)
    tensor([[ True,  True, False],
            [ True,  True,  True],
            [False,  True,  True]])
    """
    positions = torch.arange(length)
    return (positions[None, :] - positions[:, None]).abs() < window     # (query, key)
