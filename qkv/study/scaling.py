"""How does the loss fall with model size N, data D and compute C = 6 N D?

N counts the weights of the layers, without the embedding table. Runs of 5 sizes at each of 4
budgets (isoFLOP curves) give the constants of L(N, D); then a run of 3 times the largest budget,
which the fit has not seen, is predicted.
"""

import math
from functools import cache

import numpy as np

from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.model.spec import Spec
from qkv.study.language_model import BATCH, CURVES, LENGTH, VOCAB_SIZE, train_on_text
from qkv.study.power_law import PowerLaw, bootstrap, fit, interval
from qkv.study.question import Column, Condition, Experiment, Measurement, Points, Question, Trial
from qkv.study.results import Results

WIDTHS = (32, 48, 64, 96, 128)
N_LAYERS, D_HEAD = 2, 16
BUDGETS = (1, 2, 4, 8)  # of compute, relative
LARGER = 3  # the predicted run has so many times the largest budget
LARGER_WIDTH = 96
REFERENCE_WIDTH = 64  # trains for the steps of the study at budget 1


def spec_of(d_model: int) -> Spec:
    return from_sizes("decoder-only", VOCAB_SIZE, d_model, N_LAYERS, d_model // D_HEAD,
                      4 * d_model, dropout=0.0, activation="gelu", bias=False)  # fmt: skip


def layer_parameters(d_model: int) -> int:
    """N: 4 d² of attention and 8 d² of the feed-forward in each layer."""
    return 12 * N_LAYERS * d_model**2


def measure(trial: Trial) -> Measurement:
    _model, measured = train_on_text(spec_of(trial.settings["d_model"]), trial, lr=3e-3)
    n, tokens = layer_parameters(trial.settings["d_model"]), trial.steps * BATCH * LENGTH
    return measured | {"n": n, "gflops": 6 * n * tokens / 1e9}


# ── Fit ───────────────────────────────────────────────────────────────────────────────────────
@cache
def fitted(runs: tuple[tuple[float, float, float], ...]) -> tuple[PowerLaw, tuple[PowerLaw, ...]]:
    """The fit of runs (n, tokens, loss), and those of its bootstrap resamples."""
    n, d, losses = np.array(runs).T
    best = fit(n, d, losses)
    return best, tuple(bootstrap(n, d, losses, best))


def runs_of(results: Results) -> tuple[tuple[float, float, float], ...]:
    """The runs of the isoFLOP curves whose loss is finite."""
    rows = [measured[0] for measured in results.measurements["runs"].values()]
    return tuple((row["n"], row["tokens"], row["loss"]) for row in rows if row["loss"] is not None)


def conclude(results: Results) -> str:
    best, resampled = fitted(runs_of(results))
    fits = list(resampled)
    larger = results.measurements["larger"]["larger"][0]
    loss = math.nan if larger["loss"] is None else larger["loss"]
    predicted = best.loss(larger["n"], larger["tokens"])
    return _(
        "L = {E:.3f} + {A:.3g} / N^{a:.2f} + {B:.3g} / D^{b:.2f} (95 % intervals by bootstrap: a "
        "{a_low:.2f} to {a_high:.2f}, b {b_low:.2f} to {b_high:.2f}); the best size grows with "
        "C^{p:.2f} ({p_low:.2f} to {p_high:.2f}). For a run of {larger} times the largest budget "
        "the fit predicts {predicted:.3f} nats; measured are {loss:.3f}, an error of {error:.1%}.",
        **best._asdict(),
        **bounds(fits, "a"),
        **bounds(fits, "b"),
        p=best.optimal_exponent,
        **bounds(fits, "optimal_exponent", "p"),
        larger=LARGER,
        predicted=predicted,
        loss=loss,
        error=abs(predicted / loss - 1),
    )


def bounds(fits: list[PowerLaw], name: str, short: str = "") -> dict[str, float]:
    low, high = interval(fits, name)
    return {f"{short or name}_low": low, f"{short or name}_high": high}


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
def condition(d_model: int, budget: int) -> Condition:
    """All sizes of a budget take the same FLOPs: 6 N D."""
    factor = budget * layer_parameters(REFERENCE_WIDTH) / layer_parameters(d_model)
    settings = {
        "d_model": d_model,
        "n": layer_parameters(d_model),
        "budget": budget,
        "steps_factor": factor,
    }
    return Condition(N_("N = {n:,}, budget {budget}"), settings)


COLUMNS = (
    Column("loss", N_("held-out loss, nats")),
    Column("n", N_("N, without embeddings"), ",.0f"),
    Column("tokens", N_("D, tokens"), ",.0f"),
    Column("gflops", N_("C = 6 N D, GFLOPs"), ",.0f"),
)
QUESTION = Question(
    experiments={
        "runs": Experiment(
            title=N_("Runs at 4 budgets of compute and 5 sizes"),
            conditions={
                f"d{d_model}-b{budget}": condition(d_model, budget)
                for budget in BUDGETS
                for d_model in WIDTHS
            },
            measure=measure,
            equal=N_("C = 6 N D at each budget; layers, learning rate, shape of the schedule"),
            columns=COLUMNS,
            panels=(
                Points(
                    "n", "loss", N_("N, without embeddings"), N_("held-out loss, nats"), "budget",
                    log_x=True,
                ),
                CURVES,
            ),
            trains=True,
            compares=False,
            n_seeds=1,
        ),
        "larger": Experiment(
            title=N_("The predicted run: 3 times the largest budget"),
            conditions={"larger": condition(LARGER_WIDTH, LARGER * BUDGETS[-1])},
            measure=measure,
            equal=N_("as above; the fit does not use it"),
            columns=COLUMNS,
            trains=True,
            compares=False,
            n_seeds=1,
        ),
    },
    conclude=conclude,
    published=N_(
        "Kaplan et al. 2020: the best N grows with C^0.73. Hoffmann et al. 2022 (Chinchilla): with "
        "C^0.50; L = 1.69 + 406.4 / N^0.34 + 410.7 / D^0.28. Besiroglu et al. 2024 (Epoch) fit the "
        "same runs again: L = 1.82 + 482 / N^0.35 + 2085 / D^0.37."
    ),
    data="text",
    minutes=30.0,
)  # fmt: skip
