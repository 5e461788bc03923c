"""Optimisers: how a gradient becomes a step.

In: a model and a recipe. Out: torch optimisers, whose learning rates the loop scales together.
Adam and AdamW are torch's fused ones; Muon is ours, in float32. Told in docs/training.md, "Optimisers".
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.train.recipe import Recipe


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix: every direction of a weight learns at the same pace.

    Matrices of one shape are stacked into one batched product, in float32: on CPUs without bf16 units torch's own
    takes eight times as long.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            alike: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    alike.setdefault(weight.shape, []).append(weight)
            for weights in alike.values():
                self._step_of(weights, group)

    def _step_of(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        buffers = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"])  # Nesterov's look ahead
        moves = orthogonalised(torch.stack(ahead)).unbind()  # each (rows, columns)
        rows, columns = weights[0].shape
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, moves, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalised(x: Tensor, rounds: int = 5) -> Tensor:
    """(many, rows, columns) -> about U V^T of each x = U S V^T: five rounds of a quintic lead all S near 1."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(rounds):
        square = x @ x.mT  # (many, rows, rows)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


def make_optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """One optimiser, or with muon two: matrices inside the layers, and all the rest."""
    matrices = {
        name: weight
        for name, weight in model.named_parameters()
        if weight.ndim >= 2 and ".layers." in name
    }
    others = [weight for name, weight in model.named_parameters() if name not in matrices]
    if recipe.optimizer == "muon":
        flat = [weight for weight in matrices.values() if weight.ndim == 2]
        others += [weight for weight in matrices.values() if weight.ndim > 2]
        muon = Muon(flat, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay)
        return [muon, _adam(recipe, [{"params": others, "weight_decay": 0.0}])]
    decayed = {"params": list(matrices.values()), "weight_decay": recipe.weight_decay}
    return [_adam(recipe, [decayed, {"params": others, "weight_decay": 0.0}])]


def _adam(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(
        groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=True
    )


def set_share(optimizers: list[torch.optim.Optimizer], share: float) -> float:
    """Scale every learning rate to this share of its peak; gives the last one's, for the report."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak", group["lr"]) * share
    return optimizers[-1].param_groups[-1]["lr"]
