"""AttentionContext: positions, attention mask and rotary angles, computed once per forward pass.

See docs/explanation/model.md, "Attention mask".
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from qkv.model.alibi import alibi_bias
from qkv.model.rotary import NoRotation, Rotation


@dataclass(eq=False)
class AttentionMask:
    """The mask of one attention: `allowed` (True = may attend, None = all keys), or `is_causal`.

    ALiBi has a bias, which is added to the scores.
    """

    allowed: Tensor | None = None  # (batch or 1, 1, query, key)
    is_causal: bool = False
    bias: Tensor | None = None  # (batch or 1, heads, query, key)

    @cached_property
    def for_sdpa(self) -> Tensor | None:
        """`allowed`; with a bias, the bias with -inf where a query may not attend."""
        if self.bias is None or self.allowed is None:
            return self.allowed if self.bias is None else self.bias
        return self.bias.masked_fill(~self.allowed, -math.inf)   # (batch or 1, heads, query, key)


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
    alibi: torch.dtype | None = None  # of the bias; None: the positions are not ALiBi
    _masks: dict[int | None, AttentionMask] = field(default_factory=dict)
    _biased: dict[tuple[int | None, int], AttentionMask] = field(default_factory=dict)

    def mask(self, window: int | None = None, n_heads: int = 1) -> AttentionMask:
        """The mask for this window, and the bias of so many heads; computed once per pass."""
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        if self.alibi is None:
            return self._masks[window]
        if (window, n_heads) not in self._biased:
            self._biased[window, n_heads] = self._with_bias(self._masks[window], n_heads)
        return self._biased[window, n_heads]

    def _with_bias(self, mask: AttentionMask, n_heads: int) -> AttentionMask:
        """The mask with ALiBi's bias; the fused kernel takes no bias with `is_causal`."""
        assert self.alibi is not None
        keys = self._key_positions()
        bias = alibi_bias(n_heads, keys[:, self.past :], keys, self.alibi)
        allowed = mask.allowed
        if mask.is_causal:
            allowed = bias.new_ones(1, 1, *bias.shape[2:], dtype=torch.bool).tril(self.past)
        return AttentionMask(allowed, bias=bias)

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
        positions = self._key_positions()
        key, query = positions[:, None, None, :], positions[:, None, self.past :, None]
        return (key > query - window) & (key < query + window)     # (batch or 1, 1, query, key)

    def _key_positions(self) -> Tensor:
        """The positions of all tokens, (batch or 1, key)."""
        return position_ids_of(self.past + self.length, 0, self.attention_mask, self.device)


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
