"""Which learning-rate schedule, and is warmup needed? The study is called `warmup`."""

from typing import Any

from qkv.messages import N_, _
from qkv.model.presets import from_sizes
from qkv.study.language_model import COLUMNS, CURVES, VOCAB_SIZE, recipe_of, train_on_text
from qkv.study.question import Condition, Experiment, Lines, Measurement, Question, Trial, Values
from qkv.study.results import Results
from qkv.train.schedule import lr_factor

D_MODEL, N_LAYERS, N_HEADS = 64, 4, 4
LR = 3e-3  # the peak of every schedule
WARM_UP_FRACTION = 0.1
PLOTTED_STEPS = 40


def options_of(schedule: str, warm_up: bool, steps: int) -> dict[str, Any]:
    """The options of a recipe; the peak of the paper's formula is scaled to LR."""
    warmup_steps = max(1, round(WARM_UP_FRACTION * steps)) if warm_up else 0
    peak = (D_MODEL * max(1, warmup_steps)) ** -0.5 if schedule == "paper" else 1.0
    return {
        "optimizer": "adam",
        "lr": LR / peak,
        "schedule": schedule,
        "warmup_steps": warmup_steps,
        "max_grad_norm": 0.0,
    }


def measure(trial: Trial) -> Measurement:
    """Train a post-norm model, as in 2017."""
    options = options_of(trial.settings["schedule"], trial.settings["warm_up"], trial.steps)
    spec = from_sizes("decoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, placement="post")  # fmt: skip
    _model, measured = train_on_text(spec, trial, **options)
    recipe = recipe_of(trial, **options)
    plotted = range(1, trial.steps + 1, max(1, trial.steps // PLOTTED_STEPS))
    rates = [recipe.lr * lr_factor(recipe, D_MODEL, step) for step in plotted]
    return measured | {"lr_steps": list(plotted), "lr": rates}


def conclude(results: Results) -> str:
    best = results.best("schedules", "loss")
    compared = results.compare("schedules", "loss", "constant-none", best)
    warm_up = results.compare("schedules", "loss", "constant-none", "constant")
    return _(
        "{best} has the lowest held-out loss, {difference:+.3f} nats to a constant learning rate "
        "without warmup ({test}). Warmup alone changes a constant learning rate by "
        "{warm_up:+.3f} nats ({warm_up_test}).",
        best=results.label("schedules", best),
        difference=compared.difference,
        test=compared.text,
        warm_up=warm_up.difference,
        warm_up_test=warm_up.text,
    )


def condition(label: str, schedule: str, warm_up: bool = True) -> Condition:
    return Condition(label, {"schedule": schedule, "warm_up": warm_up})


QUESTION = Question(
    experiments={
        "schedules": Experiment(
            title=N_("Schedules with the same peak learning rate, a post-norm model of 4 layers"),
            conditions={
                "constant-none": condition(N_("constant, no warmup"), "constant", False),
                "constant": condition(N_("constant, warmup"), "constant"),
                "inverse-sqrt": condition(N_("inverse square root, warmup"), "inverse_sqrt"),
                "paper": condition(N_("the paper's (Noam), warmup"), "paper"),
                "cosine": condition(N_("cosine, warmup"), "cosine"),
                "cosine-none": condition(N_("cosine, no warmup"), "cosine", False),
                "wsd": condition(N_("warmup, stable, decay (WSD)"), "wsd"),
            },
            measure=measure,
            equal=N_("parameters, tokens, FLOPs, Adam, peak learning rate 0.003, no clipping"),
            columns=COLUMNS,
            panels=(
                Values("loss", N_("held-out loss, nats")),
                CURVES,
                Lines("lr_steps", "lr", N_("step"), N_("learning rate")),
            ),
            trains=True,
        )
    },
    conclude=conclude,
    published=N_(
        "Vaswani et al. 2017, section 5.3: 4,000 steps of linear warmup, then the inverse square "
        "root of the step. Xiong et al. 2020: post-norm models need warmup. Hu et al. 2024 "
        "(MiniCPM): WSD reaches the loss of cosine, and the decay lowers it quickly."
    ),
    data="text",
)
