"""AttentionContext: positions, attention mask and rotary angles, computed once per forward pass.

See docs/explanation/model.md, "Attention mask".
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.model.rotary import NoRotation, Rotation

__all__ = ["AttentionContext", "AttentionMask", "position_ids_of"]


class AttentionMask(NamedTuple):
    """The mask of one attention: `allowed` (True = may attend, None = all keys), or `is_causal`."""

    allowed: Tensor | None = None  # (batch or 1, 1, query, key)
    is_causal: bool = False


@dataclass
class AttentionContext:
    """What all layers of a pass share: `length` new tokens after `past` cached ones.

    `attention_mask` marks which of all these are tokens (True) and which are padding (False).
    """

    length: int
    past: int = 0
    causal: bool = False
    attention_mask: Tensor | None = None  # (batch, past + length); None: no padding
    rotate: Rotation = field(default_factory=NoRotation)
    device: torch.device | None = None
    _masks: dict[int | None, AttentionMask] = field(default_factory=dict)

    def mask(self, window: int | None = None) -> AttentionMask:
        """The attention mask for this window; computed once per window and pass."""
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        return self._masks[window]

    def _make_mask(self, window: int | None) -> AttentionMask:
        n_keys = self.past + self.length
        masks_future = self.causal and self.length > 1
        in_window = window is None or n_keys <= window  # the window covers all keys
        if self.attention_mask is None and in_window and (self.past == 0 or not masks_future):
            return AttentionMask(is_causal=masks_future)
        allowed = torch.ones(1, 1, self.length, n_keys, dtype=torch.bool, device=self.device)
        if self.causal:
            allowed = allowed.tril(self.past)
        if not in_window:
            assert window is not None
            allowed = allowed & self._window_mask(window)
        if self.attention_mask is not None:
            allowed = allowed & self.attention_mask[:, None, None, :]
        return AttentionMask(allowed)                              # (batch or 1, 1, query, key)

    def _window_mask(self, window: int) -> Tensor:
        """True where |key position - query position| < window; padding does not count."""
        n_keys = self.past + self.length
        positions = position_ids_of(n_keys, 0, self.attention_mask, self.device)
        key, query = positions[:, None, None, :], positions[:, None, self.past :, None]
        return (key > query - window) & (key < query + window)     # (batch or 1, 1, query, key)


def position_ids_of(
    length: int, past: int, attention_mask: Tensor | None, device: torch.device | None
) -> Tensor:
    """The positions of the last `length` tokens, (batch or 1, length).

    Padding is not counted, so the first token of a left-padded row has position 0.
    """
    if attention_mask is None:
        return torch.arange(past, past + length, device=device)[None]
    positions = (attention_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    return positions[:, past : past + length]
