"""Adam, AdamW or Muon, at equal steps and at equal time? Each at its best learning rate."""

from statistics import fmean
from typing import Any

import numpy as np

from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.study.language_model import COLUMNS, CURVES, VOCAB_SIZE, train_on_text
from qkv.study.question import (
    Column,
    Condition,
    Experiment,
    Lines,
    Measurement,
    Question,
    Trial,
    Values,
)
from qkv.study.results import Results

D_MODEL, N_LAYERS, N_HEADS = 64, 4, 4
RATES = {  # learning rates that are tried, of Muon those of its matrices
    "adam": (1e-3, 3e-3, 1e-2),
    "adamw": (1e-3, 3e-3, 1e-2),
    "muon": (0.007, 0.02, 0.06),
}
MUON_OTHER_LR = 3e-3  # of embeddings and norms, by AdamW


def options_of(optimizer: str, rate: float) -> dict[str, Any]:
    if optimizer == "muon":
        return {"optimizer": optimizer, "lr": MUON_OTHER_LR, "muon_lr": rate}
    return {
        "optimizer": optimizer,
        "lr": rate,
        "weight_decay": 0.1 if optimizer == "adamw" else 0.0,
    }


def measure(trial: Trial) -> Measurement:
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, activation="gelu")  # fmt: skip
    options = options_of(trial.settings["optimizer"], trial.settings["rate"])
    _model, measured = train_on_text(spec, trial, **options)
    seconds = measured["seconds"][-1]
    return measured | {"ms_per_step": 1_000 * seconds / trial.steps}


def conclude(results: Results) -> str:
    best = {name: results.best("optimizers", "loss", names_of(name)) for name in RATES}
    compared = {
        name: results.compare("optimizers", "loss", best["adam"], best[name]) for name in RATES
    }
    at_time = losses_at_equal_time(results, best)
    return _(
        "At equal steps and each at its best learning rate, AdamW has {adamw:+.3f} nats to Adam "
        "({adamw_test}) and Muon {muon:+.3f} ({muon_test}). A step of Muon takes {slower:.2f} "
        "times as long as one of Adam; at equal time the training loss is {time_adam:.3f} (Adam), "
        "{time_adamw:.3f} (AdamW) and {time_muon:.3f} (Muon).",
        adamw=compared["adamw"].difference,
        adamw_test=compared["adamw"].text,
        muon=compared["muon"].difference,
        muon_test=compared["muon"].text,
        slower=results.mean("optimizers", best["muon"], "ms_per_step")
        / results.mean("optimizers", best["adam"], "ms_per_step"),
        **{f"time_{name}": loss for name, loss in at_time.items()},
    )


def losses_at_equal_time(results: Results, conditions: dict[str, str]) -> dict[str, float]:
    """The mean training loss of each optimizer when the fastest run has ended."""
    runs = {name: results.measurements["optimizers"][key] for name, key in conditions.items()}
    end = min(run["seconds"][-1] for measured in runs.values() for run in measured)
    return {
        name: fmean(loss_at(run["seconds"], run["train_loss"], end) for run in measured)
        for name, measured in runs.items()
    }


def loss_at(seconds: list[float], losses: list[float | None], end: float) -> float:
    """The loss after `end` seconds, interpolated; NaN where it was not finite."""
    known = [np.nan if loss is None else loss for loss in losses]
    return float(np.interp(end, seconds, known))


def names_of(optimizer: str) -> list[str]:
    return [f"{optimizer}-{rate:g}" for rate in RATES[optimizer]]


def conditions() -> dict[str, Condition]:
    labels = {
        "adam": "Adam, lr {rate:g}",
        "adamw": "AdamW, lr {rate:g}",
        "muon": "Muon, lr {rate:g}",
    }
    return {
        f"{name}-{rate:g}": Condition(labels[name], {"optimizer": name, "rate": rate})
        for name, rates in RATES.items()
        for rate in rates
    }


QUESTION = Question(
    experiments={
        "optimizers": Experiment(
            title=N_("Optimizers at three learning rates"),
            conditions=conditions(),
            measure=measure,
            equal=N_("initial weights, parameters, tokens, FLOPs of the model, schedule"),
            columns=(*COLUMNS, Column("ms_per_step", N_("ms per step"), ".1f")),
            panels=(
                Values("loss", N_("held-out loss, nats")),
                CURVES,
                Lines("seconds", "train_loss", N_("seconds"), N_("training loss, nats")),
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "Loshchilov and Hutter 2019: AdamW generalizes better than Adam with L2. Jordan 2024 and "
        "Liu et al. 2025 (Moonlight): Muon needs about half of the FLOPs of AdamW for the same "
        "loss."
    ),
    data="text",
)
