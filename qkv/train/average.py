"""Averages of weights: exponential moving average (EMA) and the mean of the last checkpoints.

See docs/explanation/training.md, "Weight averaging".
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from qkv.train.state import checkpoint_folder, load_state


class Ema:
    """Exponential moving average: ema <- decay * ema + (1 - decay) * weights, after every step."""

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        torch._foreach_lerp_(
            list(self.weights.values()),
            [weight.detach() for weight in model.parameters()],
            1 - self.decay,
        )

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Load a saved average, in the order of the model: files sort their names."""
        self.weights = {
            name: saved[name].to(weight.device) for name, weight in self.weights.items()
        }

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Give the model the averaged weights inside the block, and its own weights after it."""
        own = {name: weight.data for name, weight in model.named_parameters()}
        for name, weight in model.named_parameters():
            weight.data = self.weights[name]
        try:
            yield
        finally:
            for name, weight in model.named_parameters():
                weight.data = own[name]


def average_checkpoints(run_folder: Path, steps: Iterable[int], group: str) -> dict[str, Tensor]:
    """The mean of one group of tensors over the checkpoints of these steps."""
    folders = (checkpoint_folder(run_folder, step) for step in steps)
    return average_state_dicts(load_state(folder, {group}).tensors[group] for folder in folders)


def average_state_dicts(states: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, summed in float64, with one state in memory at a time."""
    total: dict[str, Tensor] = {}
    count, dtypes = 0, {}
    for state in states:
        count += 1
        for name, tensor in state.items():
            dtypes[name] = tensor.dtype
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / count).to(dtypes[name]) for name, tensor in total.items()}
