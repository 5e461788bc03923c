"""Which position encoding: the order of tokens, and sequences longer than in training."""

import torch
from torch import Tensor

from qkv.messages import N_, _
from qkv.model.eval_mode import eval_mode
from qkv.model.families import POSITIONS
from qkv.model.presets import from_sizes
from qkv.model.transformer import Transformer
from qkv.study.language_model import (
    COLUMNS,
    CURVES,
    LENGTH,
    VOCAB_SIZE,
    cost_of,
    loss_by_position,
    new_model,
    recipe_of,
    text_loss,
    train,
    valid_ids,
)
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
from qkv.study.tasks import TASK_VOCAB_SIZE, TASKS, accuracy, task_loss
from qkv.train.seeds import derive_seed

D_MODEL, N_LAYERS, N_HEADS = 64, 2, 4
LONGER = 4  # the longest tested sequence has so many times the trained length
SEGMENT = 16  # positions whose losses are averaged
TASK_SIZE = 8  # symbols of a copy or reverse in training
SENTENCE_LENGTH = 12


def decoder(vocab_size: int, positions: str, max_len: int, trial: Trial) -> Transformer:
    assert positions in POSITIONS
    spec = from_sizes("decoder-only", vocab_size, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, positions=positions, activation="gelu",  # type: ignore[arg-type]
                      max_len=max_len)  # fmt: skip
    return new_model(spec, trial)


# ── Order ─────────────────────────────────────────────────────────────────────────────────────
def measure_order(trial: Trial) -> Measurement:
    """The vector of a sentence and of the same tokens in another order, by a new encoder."""
    torch.manual_seed(derive_seed(trial.seed, 0))
    spec = from_sizes("encoder-only", VOCAB_SIZE, D_MODEL, N_LAYERS, N_HEADS, 4 * D_MODEL,
                      dropout=0.0, positions=trial.settings["positions"])  # fmt: skip
    model = Transformer(spec).double()
    ids = torch.randperm(VOCAB_SIZE)[None, :SENTENCE_LENGTH]
    permuted = ids[:, torch.randperm(SENTENCE_LENGTH)]
    first, second = sentence_vector(model, ids), sentence_vector(model, permuted)
    return {"difference": ((first - second).norm() / first.norm()).item()}


def sentence_vector(model: Transformer, ids: Tensor) -> Tensor:
    """The mean of the hidden states, (d_model,)."""
    with eval_mode(model):
        return model.encode(ids).states[0].mean(dim=0)


# ── Length ────────────────────────────────────────────────────────────────────────────────────
def measure_length(trial: Trial) -> Measurement:
    """Train on short windows of text; the loss by position in windows of 4 times the length."""
    model = decoder(VOCAB_SIZE, trial.settings["positions"], LONGER * LENGTH, trial)
    curve = train(model, text_loss(model, trial), recipe_of(trial), trial)
    losses = torch.tensor(loss_by_position(model, valid_ids(trial, LONGER * LENGTH)))
    segments = losses.unflatten(0, (-1, SEGMENT)).mean(dim=1)
    return {
        "loss": losses[:LENGTH].mean().item(),
        "beyond": losses[LENGTH:].mean().item(),
        "positions": [SEGMENT * (index + 1) for index in range(len(segments))],
        "losses": segments.tolist(),
        **curve.as_measurement(),
        **cost_of(model.spec, trial.steps),
    }


# ── Tasks ─────────────────────────────────────────────────────────────────────────────────────
def measure_tasks(trial: Trial) -> Measurement:
    """Train copy or reverse; its accuracy at the trained size and at twice the size."""
    task = TASKS[trial.settings["task"]]
    longest = LONGER * (2 * TASK_SIZE + 1)
    model = decoder(TASK_VOCAB_SIZE, trial.settings["positions"], longest, trial)
    curve = train(model, task_loss(model, task, TASK_SIZE, trial), recipe_of(trial), trial)
    return {
        "accuracy": accuracy(model, task, TASK_SIZE),
        "accuracy_longer": accuracy(model, task, 2 * TASK_SIZE),
        **curve.as_measurement(),
        **cost_of(model.spec, trial.steps, 2 * TASK_SIZE),
    }


# ── Study ─────────────────────────────────────────────────────────────────────────────────────
NAMES = {
    "none": N_("none"),
    "learned": N_("learned"),
    "sinusoidal": N_("sinusoidal"),
    "rotary": N_("rotary (RoPE)"),
}


def conclude(results: Results) -> str:
    growth = {
        name: results.mean("length", name, "beyond") - results.mean("length", name, "loss")
        for name in NAMES
    }
    best = results.best("length", "loss", [name for name in NAMES if name != "none"])
    compared = results.compare("length", "loss", "none", best)
    return _(
        "Without positions an encoder gives a permuted sentence the same vector (difference "
        "{none:.0e}; rotary {rotary_order:.2f}). At the trained length the best encoding is "
        "{best}, {difference:+.3f} nats to none ({test}). From there to {longer} times the "
        "length, the loss changes by {growth_none:+.2f} nats without positions, "
        "{growth_rotary:+.2f} with rotary, {growth_sinusoidal:+.2f} with sinusoidal and "
        "{growth_learned:+.2f} with learned ones.",
        none=results.mean("order", "none", "difference"),
        rotary_order=results.mean("order", "rotary", "difference"),
        best=results.label("length", best),
        difference=compared.difference,
        test=compared.text,
        longer=LONGER,
        **{f"growth_{name}": growth[name] for name in NAMES},
    )


def task_conditions() -> dict[str, Condition]:
    labels = {
        "none": N_("{task}, none"),
        "learned": N_("{task}, learned"),
        "sinusoidal": N_("{task}, sinusoidal"),
        "rotary": N_("{task}, rotary (RoPE)"),
    }
    return {
        f"{task}-{name}": Condition(label, {"task": task, "positions": name})
        for task in ("copy", "reverse")
        for name, label in labels.items()
    }


CONDITIONS = {name: Condition(label, {"positions": name}) for name, label in NAMES.items()}
QUESTION = Question(
    experiments={
        "order": Experiment(
            title=N_("A sentence and its permutation: relative difference of their vectors"),
            conditions=CONDITIONS,
            measure=measure_order,
            equal=N_("a new encoder of 2 layers in float64, its weights, the tokens"),
            columns=(Column("difference", N_("difference"), ".1e"),),
        ),
        "length": Experiment(
            title=N_("Trained on 64 tokens, tested on 256"),
            conditions=CONDITIONS,
            measure=measure_length,
            equal=N_("layers, tokens, FLOPs; parameters, but learned positions have a table"),
            columns=(*COLUMNS, Column("beyond", N_("loss of tokens 65 to 256, nats"))),
            panels=(
                Values("beyond", N_("loss of tokens 65 to 256, nats")),
                Lines("positions", "losses", N_("position"), N_("held-out loss, nats")),
                CURVES,
            ),
            trains=True,
        ),
        "tasks": Experiment(
            title=N_("Copy and reverse 8 symbols, tested on 8 and 16"),
            conditions=task_conditions(),
            measure=measure_tasks,
            equal=N_("layers, tokens, FLOPs; parameters, but learned positions have a table"),
            columns=(
                Column("accuracy", N_("accuracy, 8 symbols"), ".1%"),
                Column("accuracy_longer", N_("accuracy, 16 symbols"), ".1%"),
                *COLUMNS[1:],
            ),
            panels=(
                Values("accuracy", N_("accuracy, 8 symbols")),
                Values("accuracy_longer", N_("accuracy, 16 symbols")),
                CURVES,
            ),
            trains=True,
            compares=False,  # of different tasks
        ),
    },
    conclude=conclude,
    published=N_(
        "Kazemnejad et al. 2023: decoders without positions generalize to longer sequences better "
        "than with rotary or learned ones. Press et al. 2022: with sinusoidal positions the loss "
        "rises soon after the trained length, with rotary ones somewhat later, with ALiBi not."
    ),
    data="text",
)
