"""AttentionContext: positions, attention mask and rotary angles, computed once per forward pass.

See docs/explanation/model.md, "Attention mask".
"""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from qkv.model.alibi import alibi_bias
from qkv.model.attention_mask import AttentionMask as AttentionMask
from qkv.model.band_mask import BandMask, gather
from qkv.model.band_size import is_banded
from qkv.model.rotary import NoRotation, Rotation

__all__ = ["AttentionContext", "AttentionMask", "position_ids_of"]


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
    _masks: dict[tuple[int | None, int], AttentionMask] = field(default_factory=dict)
    _parts: dict[tuple[int, int], "AttentionContext"] = field(default_factory=dict)

    def mask(self, window: int | None = None, n_heads: int = 1) -> AttentionMask:
        """The mask for this window, and ALiBi's bias of so many heads; computed once per pass."""
        key = window, 1 if self.alibi is None else n_heads
        if key not in self._masks:
            self._masks[key] = self._make_mask(*key)
        return self._masks[key]

    def _make_mask(self, window: int | None, n_heads: int) -> AttentionMask:
        n_keys = self.past + self.length
        if window and self.length > window and is_banded(n_keys, window, self.causal):
            return BandMask(context=self, window=window, n_heads=n_heads)
        return self.dense_mask(window, n_heads)

    def dense_mask(self, window: int | None, n_heads: int) -> AttentionMask:
        """The mask of all pairs of query and key."""
        mask = self._allowed_pairs(window)
        return mask if self.alibi is None else self._with_bias(mask, n_heads)

    def _with_bias(self, mask: AttentionMask, n_heads: int) -> AttentionMask:
        """The mask with ALiBi's bias; the fused kernel takes no bias with `is_causal`."""
        assert self.alibi is not None
        keys = self._key_positions()
        bias = alibi_bias(n_heads, keys[:, self.past :], keys, self.alibi)
        allowed = mask.allowed
        if mask.is_causal:
            allowed = bias.new_ones(1, 1, *bias.shape[2:], dtype=torch.bool).tril(self.past)
        return AttentionMask(allowed, bias=bias)

    def _allowed_pairs(self, window: int | None) -> AttentionMask:
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

    # ── Sliding windows ───────────────────────────────────────────────────────────────────────────
    @cached_property
    def tokens_first(self) -> Tensor | None:
        """The order (batch, key) that moves padding to the end of each row; None: no padding."""
        mask = self.attention_mask
        return None if mask is None else (~mask).long().argsort(dim=1, stable=True)

    def local(self, past: int, length: int) -> "AttentionContext":
        """The context of a block without padding: `length` queries and `past` keys before them."""
        key = past, length
        if key not in self._parts:
            self._parts[key] = AttentionContext(
                length, past, self.causal, device=self.device, alibi=self.alibi
            )
        return self._parts[key]

    def last(self, n_past: int) -> "AttentionContext":
        """The context of the new tokens and the last `n_past` of each row before them.

        Rows with fewer tokens have padding before them, as in WindowCache.
        """
        past, mask = min(self.past, n_past), self.attention_mask
        if mask is None and past == self.past:
            return self
        if (past, -1) not in self._parts:
            if mask is not None:
                counts = mask[:, : self.past].sum(dim=1, keepdim=True)
                columns = torch.arange(past, 0, -1, device=mask.device)
                mask = torch.cat([columns <= counts, mask[:, self.past :]], dim=1)
            self._parts[past, -1] = AttentionContext(
                self.length, past, self.causal, mask, self.rotate, self.device, self.alibi
            )
        return self._parts[past, -1]

    def select_last(self, x: Tensor, n: int) -> Tensor:
        """The last n tokens of each row of x (batch, heads, key, width), padding before them."""
        n = min(n, x.shape[2])
        if self.attention_mask is None:
            return x.narrow(2, x.shape[2] - n, n).contiguous()
        return gather(x, self._tokens_last[:, x.shape[2] - n :])

    @cached_property
    def _tokens_last(self) -> Tensor:
        """The order (batch, key) that moves padding to the start of each row."""
        assert self.attention_mask is not None
        return self.attention_mask.long().argsort(dim=1, stable=True)


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
