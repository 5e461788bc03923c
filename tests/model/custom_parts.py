"""Custom parts that the tests import by their path."""

import torch
from torch import Tensor, nn

from qkv.model.mixers import TokenMixer
from qkv.model.positions import NoPositions


class Ramp(NoPositions):
    """Add slope x position to every dimension; the slope is a trained weight."""

    def __init__(self, d_model: int, slope: float = 0.5):
        super().__init__()
        self.slope = nn.Parameter(torch.full((d_model, 1), slope))

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + position_ids[..., None] * self.slope[:, 0]


class RunningMean(TokenMixer):
    """The mean of all tokens so far."""

    def __init__(self, d_model: int, causal: bool):
        super().__init__()
        assert causal

    def mix(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.cumsum(1) / mask.cumsum(1).clamp(min=1)[..., None]


class Bottleneck(nn.Module):
    """A feed-forward narrower than the model."""

    def __init__(self, d_model: int, width: int):
        super().__init__()
        self.down, self.up = nn.Linear(d_model, width), nn.Linear(width, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x).tanh())


class Forgetful(NoPositions):
    """A table that is not saved."""

    def __init__(self, d_model: int):
        super().__init__()
        self.register_buffer("table", torch.ones(8), persistent=False)


def not_a_class() -> None: ...
