"""Optimizers: torch's fused Adam and AdamW, and Muon in float32. See docs/guides/training.md."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.train.parameter_groups import parameter_groups
from qkv.train.recipe import Recipe


class Muon(torch.optim.Optimizer):
    """Muon: Nesterov momentum, orthogonalized by Newton-Schulz iterations.

    Matrices of one shape are stacked into one batched product, in float32: on CPUs without bf16
    instructions torch's own Muon takes eight times as long.
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
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for weights in by_shape.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        grads = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        buffers = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(buffers, grads, 1 - group["momentum"])
        nesterov = torch._foreach_lerp(grads, buffers, group["momentum"])
        updates = orthogonalize(torch.stack(nesterov)).unbind()  # each (rows, columns)
        rows, columns = weights[0].shape
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, updates, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalize(x: Tensor, iterations: int = 5) -> Tensor:
    """Newton-Schulz iterations: for each x = U S V^T, (n, rows, columns), approximately U V^T."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT  # (n, rows, rows)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def make_optimizers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """One optimizer, or two with muon: Muon for the matrices of the layers, AdamW for the rest."""
    groups = parameter_groups(model, recipe)
    options = [
        {"params": list(group.weights.values()), "weight_decay": group.weight_decay}
        for group in groups
    ]
    if groups[0].optimizer != "muon":
        return [_adam(recipe, options)]
    matrices = list(groups[0].weights.values())
    muon = Muon(matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay)
    return [muon, _adam(recipe, options[1:])]


def _adam(recipe: Recipe, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(
        groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, fused=True
    )


def set_lr(optimizers: list[torch.optim.Optimizer], factor: float) -> float:
    """Set every learning rate to `factor` times its peak; returns the last one, for the report."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak", group["lr"]) * factor
    return optimizers[-1].param_groups[-1]["lr"]
