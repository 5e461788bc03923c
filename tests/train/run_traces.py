"""What a run is and what it left behind, in a form that two runs can be compared by."""

import hashlib
import math

import torch
from safetensors.torch import load_file

from qkv.train.report import TIMES, read_metrics
from qkv.train.state import flatten_optimizer, folder_of, load_state


def everything(trainer):
    """Weights, statistics, moments and averages of a trainer, bit by bit."""
    parts = [trainer.model.state_dict(), *(flatten_optimizer(one)[0] for one in trainer.optimizers)]
    return [
        {name: one.clone() for name, one in part.items()}
        for part in [*parts, trainer.ema.weights if trainer.ema else {}]
    ]


def same(one, other):
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


def sha256_of(folder, step):
    """Of every tensor of a checkpoint, and of the published model."""
    state = load_state(folder_of(folder, step))
    tensors = [*state.tensors.items(), ("published", load_file(folder / "model.safetensors"))]
    return {
        f"{group}/{name}": hashlib.sha256(one.numpy().tobytes()).hexdigest()
        for group, named in tensors
        for name, one in named.items()
    }


def told(folder):
    """metrics.jsonl without times."""
    return [
        {name: fact for name, fact in entry.items() if name not in TIMES}
        for entry in read_metrics(folder / "metrics.jsonl")
    ]


def watch_rows(task):
    """The sample ids of every micro-batch that the task gives, as they are asked for."""
    seen, rows = [], task.rows

    def watched(micro_step, *place):
        seen.append((micro_step, rows(micro_step, *place).tolist()))
        return rows(micro_step, *place)

    task.rows = watched
    return seen


def say_worth(trainer, figures):
    """Validations find these BLEU scores, one after the other."""
    found = iter(figures)
    trainer.task.goal = "bleu"
    trainer.task.validate = lambda model: {"loss": 1.0, "perplexity": math.e, "bleu": next(found)}


def published_steps(trainer):
    """The steps at which a model was published, as they happen."""
    steps, publish = [], trainer.publish
    trainer.publish = lambda: (steps.append(trainer.progress.step), publish())
    return steps
