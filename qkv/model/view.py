"""What a pass may see: made once per pass, read by every layer.

In: how many tokens came before, which tokens are real, whether the future is hidden. Out: a View: the places of the
tokens, the turn of queries and keys, and for each window width what may be seen. Told in docs/model.md, "The view".
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from qkv.model.turn import NoTurn, Turn


class Sight(NamedTuple):
    """What attention needs to know: `visible` (True = may look; None = all), or `causal` alone, which needs no mask."""

    visible: Tensor | None = None  # (batch or 1, 1, query, key)
    causal: bool = False


@dataclass
class View:
    """One pass of `length` tokens after `past` earlier ones; `real` marks what is no padding among all of them."""

    length: int
    past: int = 0
    sees: Literal["all", "past"] = "all"
    real: Tensor | None = None  # (batch, past + length), True = a token, False = padding; None: no padding
    turn: Turn = field(default_factory=NoTurn)
    device: torch.device | None = None
    _sights: dict[int | None, Sight] = field(default_factory=dict)

    def sight(self, window: int | None = None) -> Sight:
        """What may be seen through a window; each width is worked out once a pass."""
        if window not in self._sights:
            self._sights[window] = self._work_out(window)
        return self._sights[window]

    def _work_out(self, window: int | None) -> Sight:
        hides_future = self.sees == "past" and self.length > 1
        short = window is None or self.past + self.length <= window  # the window reaches over everything
        if self.real is None and short and (self.past == 0 or not hides_future):
            return Sight(causal=hides_future)
        visible = torch.ones(1, 1, self.length, self.past + self.length, dtype=torch.bool, device=self.device)
        if self.sees == "past":
            visible = visible.tril(self.past)
        if not short:
            assert window is not None
            visible = visible & self._near(window)
        if self.real is not None:
            visible = visible & self.real[:, None, None, :]
        return Sight(visible)  # (batch or 1, 1, query, key)

    def _near(self, window: int) -> Tensor:
        """Less than `window` places apart; padding between two tokens takes them no further from each other."""
        places = places_of(self.past + self.length, 0, self.real, self.device)  # (batch or 1, key)
        key, query = places[:, None, None, :], places[:, None, self.past :, None]
        return (key > query - window) & (key < query + window)                  # (batch or 1, 1, query, key)


def places_of(length: int, past: int, real: Tensor | None, device: torch.device | None) -> Tensor:
    """The place of each of the last `length` tokens; padding is not counted, so left-padded rows start at 0 too."""
    if real is None:
        return torch.arange(past, past + length, device=device)[None]           # (1, length)
    return (real.long().cumsum(dim=1) - 1).clamp(min=0)[:, past : past + length]  # (batch, length)
