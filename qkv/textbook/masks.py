"""Masks: which key each query may look at.

Token ids or lengths in, boolean tables out; True = may look, everywhere in qkv.
Rows are queries, columns are keys; `&` joins two masks. Told in docs/model.md, "The view".
"""

import torch
from torch import Tensor


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Every query may look at every real token.

    >>> padding_mask(torch.tensor([[5, 7, 0]]))
    tensor([[[[ True,  True, False]]]])
    """
    return only_real(ids != pad_id)                         # (batch, 1, 1, key)


def only_real(padding: Tensor) -> Tensor:
    """The same, when it is already known which tokens are real (True): room for the head and query axes."""
    return padding[:, None, None, :]                        # (batch, 1, 1, key)


def look_ahead_mask(length: int) -> Tensor:
    """Every query may look at itself and its past: key <= query.

    >>> look_ahead_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    places = torch.arange(length)
    return places[None, :] <= places[:, None]               # (query, key)


def combined_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """The decoder's mask: real tokens of the past."""
    return look_ahead_mask(ids.shape[1]).to(ids.device) & padding_mask(ids, pad_id)     # (batch, 1, query, key)


def window_mask(length: int, window: int) -> Tensor:
    """Every query may look at neighbours nearer than `window` places, itself included, on both sides.

    A window over the past only, as decoders have it, is window_mask(...) & look_ahead_mask(...).

    >>> window_mask(3, 2)
    tensor([[ True,  True, False],
            [ True,  True,  True],
            [False,  True,  True]])
    """
    places = torch.arange(length)
    return (places[None, :] - places[:, None]).abs() < window   # (query, key)
