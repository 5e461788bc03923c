"""Averages of weights: steadier than any single step.

In: the weights of several moments. Out: their mean, over the last checkpoints or as a running (exponential) average.
Told in docs/training.md, "Averages".
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """average <- decay * average + (1 - decay) * weights, after every step."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: one.detach().clone() for name, one in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        torch._foreach_lerp_(
            list(self.weights.values()),
            [one.detach() for one in model.parameters()],
            1 - self.decay,
        )

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Go on from a saved average; in the model's order, for files keep names sorted."""
        self.weights = {name: saved[name].to(one.device) for name, one in self.weights.items()}

    @contextmanager
    def lent_to(self, model: nn.Module) -> Iterator[None]:
        """Inside the block the model has the average's weights; afterwards its own again."""
        own = {name: one.data for name, one in model.named_parameters()}
        for name, one in model.named_parameters():
            one.data = self.weights[name]
        try:
            yield
        finally:
            for name, one in model.named_parameters():
                one.data = own[name]


def mean_of(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, added up in float64, one state in memory at a time."""
    total: dict[str, Tensor] = {}
    count, kinds = 0, {}
    for state in states:
        count += 1
        for name, one in state.items():
            kinds[name] = one.dtype
            total[name] = total[name] + one.double() if name in total else one.double()
    return {name: (one / count).to(kinds[name]) for name, one in total.items()}
