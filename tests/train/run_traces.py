"""Helpers to compare runs: weights, checkpoints, metrics and sample order."""

import hashlib
import math

import torch
from safetensors.torch import load_file

from qkv.train.metrics import TIMING_FIELDS, read_metrics
from qkv.train.state import checkpoint_folder, flatten_optimizer, load_state


def all_tensors(trainer):
    """Copies of the weights, buffers, optimizer moments and EMA of a trainer."""
    parts = [
        trainer.model.state_dict(),
        *(flatten_optimizer(optimizer)[0] for optimizer in trainer.optimizers),
    ]
    return [
        {name: tensor.clone() for name, tensor in part.items()}
        for part in [*parts, trainer.ema.weights if trainer.ema else {}]
    ]


def same(first, second):
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(first, second, strict=True)
    )


def sha256_of(folder, step):
    """SHA-256 of every tensor of a checkpoint and of the published model."""
    state = load_state(checkpoint_folder(folder, step))
    tensors = [*state.tensors.items(), ("published", load_file(folder / "model.safetensors"))]
    return {
        f"{group}/{name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for group, named in tensors
        for name, tensor in named.items()
    }


def metrics_without_times(folder):
    """metrics.jsonl without times."""
    return [
        {name: value for name, value in entry.items() if name not in TIMING_FIELDS}
        for entry in read_metrics(folder / "metrics.jsonl")
    ]


def record_rows(task):
    """Record the row numbers of every micro-batch of the task."""
    seen, rows = [], task.rows

    def recording(micro_step, *process):
        seen.append((micro_step, rows(micro_step, *process).tolist()))
        return rows(micro_step, *process)

    task.rows = recording
    return seen


def fake_bleu(trainer, scores):
    """Make the validations return these BLEU scores, one after the other."""
    remaining = iter(scores)
    trainer.task.metric = "bleu"
    trainer.task.validate = lambda model: {
        "loss": 1.0,
        "perplexity": math.e,
        "bleu": next(remaining),
    }


def published_steps(trainer):
    """Record the steps at which a model is published."""
    steps, publish = [], trainer.publish
    trainer.publish = lambda: (steps.append(trainer.progress.step), publish())
    return steps
