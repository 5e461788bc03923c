"""Why are attention scores divided by sqrt(d_k)?

The scores of random queries and keys, and language models trained with and without the factor.
"""

import math
from typing import Any

import torch
from torch import Tensor

from qkv.messages import N_, _
from qkv.model.attention import GroupedQueryAttention
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    VOCAB_SIZE,
    cost_of,
    loss_by_position,
    new_model,
    recipe_of,
    text_loss,
    train,
    valid_ids,
)
from qkv.study.question import Column, Condition, Experiment, Measurement, Points, Question, Trial
from qkv.study.results import Results
from qkv.train.seeds import derive_seed

WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
N_QUERIES, N_KEYS = 1_024, 1_024  # their scores give the variance
N_ATTENDED = 64  # keys of one softmax
D_MODEL, N_LAYERS, N_HEADS = 128, 2, 1


# ── Random scores ─────────────────────────────────────────────────────────────────────────────
def measure_scores(trial: Trial) -> Measurement:
    """Queries and keys with independent entries of mean 0 and variance 1."""
    d_k = trial.settings["d_k"]
    generator = torch.Generator().manual_seed(derive_seed(trial.seed, d_k))
    q = torch.randn(N_QUERIES, d_k, generator=generator, dtype=torch.float64)
    k = torch.randn(N_KEYS, d_k, generator=generator, dtype=torch.float64)
    scores = q @ k.T  # (query, key)
    return {
        "variance": scores.var().item(),
        "scaled_variance": (scores / math.sqrt(d_k)).var().item(),
        **softmax_numbers(scores[:, :N_ATTENDED], ""),
        **softmax_numbers(scores[:, :N_ATTENDED] / math.sqrt(d_k), "scaled_"),
    }


def softmax_numbers(scores: Tensor, prefix: str) -> Measurement:
    """The mean entropy of the weights, and the norm of the softmax's Jacobian diag(w) - w w^T."""
    weights = scores.softmax(dim=-1)  # (query, key)
    entropy = -(weights * scores.log_softmax(dim=-1)).sum(dim=-1)
    jacobian = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return {
        f"{prefix}entropy": entropy.mean().item(),
        f"{prefix}gradient": jacobian.flatten(1).norm(dim=1).mean().item(),
    }


# ── Language models ───────────────────────────────────────────────────────────────────────────
def measure_model(trial: Trial) -> Measurement:
    """Train with plain Adam; without the factor, scores are q k^T."""
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, activation="gelu")  # fmt: skip
    model = new_model(spec, trial)
    if not trial.settings["scaled"]:
        remove_scale(model)
    curve = train(
        model, text_loss(model, trial), recipe_of(trial, optimizer="adam", lr=1e-3), trial
    )
    losses = loss_by_position(model, valid_ids(trial))
    return {
        "loss": sum(losses) / len(losses),
        **curve.as_measurement(),
        **cost_of(spec, trial.steps),
    }


def remove_scale(model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, GroupedQueryAttention):
            module.scale = 1.0


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
def conclude(results: Results) -> str:
    slope = variance_ratio(results)
    compared = results.compare("language-model", "loss", "scaled", "unscaled")
    narrow, wide = f"d{WIDTHS[0]}", f"d{WIDTHS[-1]}"
    return _(
        "The variance of q·k is {ratio:.3f} d_k. From d_k = {narrow} to {wide} the entropy of the "
        "weights falls from {first:.2f} to {last:.2f} nats without the factor and stays at "
        "{scaled:.2f} with it; the gradient through the softmax falls to {gradient:.0%} of that "
        "with the factor. Without the factor the held-out loss of a language model changes by "
        "{difference:+.3f} nats ({test}).",
        ratio=slope,
        narrow=WIDTHS[0],
        wide=WIDTHS[-1],
        first=results.mean("scores", narrow, "entropy"),
        last=results.mean("scores", wide, "entropy"),
        scaled=results.mean("scores", wide, "scaled_entropy"),
        gradient=results.mean("scores", wide, "gradient")
        / results.mean("scores", wide, "scaled_gradient"),
        difference=compared.difference,
        test=compared.text,
    )


def variance_ratio(results: Results) -> float:
    """The mean of variance / d_k over all widths."""
    ratios = [results.mean("scores", f"d{d_k}", "variance") / d_k for d_k in WIDTHS]
    return sum(ratios) / len(ratios)


def lines(y: str, y_label: str) -> dict[str, Any]:
    return {"x": "d_k", "y": y, "x_label": N_("width of a head, d_k"), "y_label": y_label}


QUESTION = Question(
    experiments={
        "scores": Experiment(
            title=N_("Scores of random queries and keys"),
            conditions={f"d{d_k}": Condition("d_k = {d_k}", {"d_k": d_k}) for d_k in WIDTHS},
            measure=measure_scores,
            equal=N_("queries and keys of mean 0 and variance 1; 64 keys in a softmax"),
            columns=(
                Column("variance", N_("variance of q·k"), ".1f"),
                Column("scaled_variance", N_("variance of q·k / √d_k")),
                Column("entropy", N_("entropy, q·k"), ".2f"),
                Column("scaled_entropy", N_("entropy, q·k / √d_k"), ".2f"),
                Column("gradient", N_("softmax gradient, q·k")),
                Column("scaled_gradient", N_("softmax gradient, q·k / √d_k")),
            ),
            panels=(
                Points(**lines("variance", N_("variance of q·k")), log_x=True, log_y=True),
                Points(**lines("entropy", N_("entropy of the weights of q·k, nats")), log_x=True),
                Points(**lines("gradient", N_("gradient norm of the softmax of q·k")), log_x=True),
            ),
        ),
        "language-model": Experiment(
            title=N_("Language models with and without the factor"),
            conditions={
                "scaled": Condition(N_("with 1/√d_k"), {"scaled": True}),
                "unscaled": Condition(N_("without"), {"scaled": False}),
            },
            measure=measure_model,
            equal=N_(
                "initial weights, parameters, tokens, FLOPs, Adam with the same learning rate"
            ),
            columns=COLUMNS,
            panels=(CURVES,),
            trains=True,
        ),
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, section 3.2.1 and footnote 4: if the entries of q and k are "
        "independent with mean 0 and variance 1, q·k has mean 0 and variance d_k; large scores "
        "push the softmax into regions with extremely small gradients."
    ),
    data="text",
)
