"""Train small language models: one plain loop for all studies.

The loss, its curve, the loss by position and the gradient norm by layer are measured here.
"""

import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.messages import N_
from qkv.model.eval_mode import eval_mode
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.plan.cost import flops, make_workload, parameters
from qkv.study.question import Column, Lines, Measurement, Trial
from qkv.train.optim import make_optimizers, set_lr
from qkv.train.recipe import GenerateRecipe, Recipe
from qkv.train.schedule import lr_factor
from qkv.train.seeds import derive_seed

VOCAB_SIZE = 256  # tokens are bytes
BATCH, LENGTH = 16, 64  # sequences of a training step, and their tokens
VALID_WINDOWS = 64
CURVE_POINTS = 25
COLUMNS = (  # of the table of a language model
    Column("loss", N_("held-out loss, nats")),
    Column("parameters", N_("parameters"), ",.0f"),
    Column("tokens", N_("tokens"), ",.0f"),
    Column("gflops", N_("GFLOPs"), ",.0f"),
)
CURVES = Lines("steps", "train_loss", N_("step"), N_("training loss, nats"))
LossOf = Callable[[int], Tensor]  # the mean loss of a step


@dataclass
class Curve:
    """The mean training loss of the parts of a run."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def as_measurement(self) -> Measurement:
        return {"steps": self.steps, "train_loss": self.losses, "seconds": self.seconds}


def recipe_of(trial: Trial, **options: Any) -> GenerateRecipe:
    """Optimizer and schedule of a trial: AdamW, 5 percent warmup, linear decay at the end."""
    defaults: dict[str, Any] = {
        "optimizer": "adamw",
        "lr": 2e-3,
        "warmup_steps": max(1, trial.steps // 20),
    }
    return GenerateRecipe(steps=trial.steps, **(defaults | options))


def new_model(spec: Spec, trial: Trial) -> Transformer:
    """A model with weights that depend on the seed only."""
    torch.manual_seed(derive_seed(trial.seed, 0))
    return Transformer(spec)


def train(model: Transformer, loss_of: LossOf, recipe: Recipe, trial: Trial) -> Curve:
    """Minimize the loss; a loss that is not finite ends the training."""
    optimizers, curve = make_optimizers(model, recipe), Curve()
    segment, total, start = max(1, recipe.steps // CURVE_POINTS), 0.0, time.monotonic()
    model.train()
    for step in range(1, recipe.steps + 1):
        torch.manual_seed(derive_seed(trial.seed, 1, step))  # dropout
        loss = loss_of(step)
        loss.backward()
        if recipe.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        set_lr(optimizers, lr_factor(recipe, model.spec.d_model, step))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
        if step % segment == 0:
            curve.steps.append(step)
            curve.losses.append(total / segment)
            curve.seconds.append(time.monotonic() - start)
            total = 0.0
            if not math.isfinite(curve.losses[-1]):
                break
        trial.on_step(step)
    return curve


# ── Text ──────────────────────────────────────────────────────────────────────────────────────
def read_bytes(path: Path) -> np.ndarray:
    return np.fromfile(path, dtype=np.uint8)


def windows(data: np.ndarray, starts: np.ndarray, length: int) -> Tensor:
    """(batch, length + 1) ids: the tokens of each window and the one after it."""
    rows = data[starts[:, None] + np.arange(length + 1)]
    return torch.from_numpy(rows.astype(np.int64))


def random_windows(data: np.ndarray, trial: Trial, step: int, length: int = LENGTH) -> Tensor:
    """The training windows of a step; all conditions of a seed get the same."""
    generator = np.random.default_rng(derive_seed(trial.seed, 2, step))
    return windows(data, generator.integers(len(data) - length, size=BATCH), length)


def text_loss(model: Transformer, trial: Trial, length: int = LENGTH) -> LossOf:
    """The loss of a training step on train.txt."""
    data = read_bytes(trial.data / "train.txt")

    def loss_of(step: int) -> Tensor:
        ids = random_windows(data, trial, step, length)
        return model.loss(model.decode(ids[:, :-1]), ids[:, 1:]) / ids[:, 1:].numel()

    return loss_of


def valid_ids(trial: Trial, length: int = LENGTH) -> Tensor:
    """The same evenly spaced held-out windows for all conditions and seeds."""
    data = read_bytes(trial.data / "valid.txt")
    n_windows = min(VALID_WINDOWS, len(data) - length)
    return windows(data, np.linspace(0, len(data) - length - 1, n_windows).astype(int), length)


def loss_by_position(model: Transformer, ids: Tensor) -> list[float]:
    """The mean loss of each predicted token, in nats."""
    with eval_mode(model):
        logits = model.logits(model.decode(ids[:, :-1]))  # (batch, length, vocab)
        losses = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return losses.mean(dim=0).tolist()


def train_on_text(spec: Spec, trial: Trial, **options: Any) -> tuple[Transformer, Measurement]:
    """Train on the text of the study; measures held-out loss, curve, size and cost."""
    model, recipe = new_model(spec, trial), recipe_of(trial, **options)
    curve = train(model, text_loss(model, trial), recipe, trial)
    return model, {
        "loss": float(np.mean(loss_by_position(model, valid_ids(trial)))),
        **curve.as_measurement(),
        **cost_of(spec, trial.steps),
    }


def cost_of(spec: Spec, steps: int, length: int = LENGTH) -> Measurement:
    """Parameters, training tokens and training FLOPs (3 x forward), from the spec."""
    forward = sum(flops(spec, make_workload(spec, BATCH, length)).values())
    tokens = steps * BATCH * length
    return {
        "parameters": sum(parameters(spec).values()),
        "tokens": tokens,
        "gflops": 3 * forward * steps / 1e9,
    }


# ── Gradients ─────────────────────────────────────────────────────────────────────────────────
def gradient_norms(model: Transformer, loss: Tensor) -> list[float]:
    """The norm of the gradient of the weights of each decoder layer; gradients are cleared."""
    model.zero_grad()
    loss.backward()
    squares: dict[int, float] = {}
    for layer, gradient in layer_gradients(model):
        squares[layer] = squares.get(layer, 0.0) + gradient.square().sum().item()
    model.zero_grad()
    return [math.sqrt(squares[layer]) for layer in sorted(squares)]


def layer_gradients(model: Transformer) -> Iterator[tuple[int, Tensor]]:
    for name, weight in model.named_parameters():
        found = re.match(r"decoder\.layers\.(\d+)\.", name)
        if found and weight.grad is not None:
            yield int(found[1]), weight.grad
