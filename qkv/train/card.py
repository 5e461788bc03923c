"""The end of a run, told to people: the final score, the curves, the model card.

In: a trained folder and what `qkv.load` gives for it. Out: README.md and curves.png in the folder, and the score.
Told in docs/training.md, "What a run leaves behind".
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkv.language import say
from qkv.measure.cost import parameters
from qkv.model.spec import Stack
from qkv.text.lines import write_text
from qkv.train.report import METRICS, Facts, draw_curves, model_card, read_metrics
from qkv.train.task import Task


def write_card(folder: Path, task: Task, use: Callable[..., Any]) -> str:
    """Ask the task for its last word on the published model, and write down what it is and how good it is."""
    recipe, spec, final = task.recipe, task.spec, task.final(use)
    entries = read_metrics(folder / METRICS)
    depth = " + ".join(str(_depth(stack)) for stack in (spec.encoder, spec.decoder) if stack is not None)
    facts = Facts(
        folder=str(folder), data=final.data,
        model={say("parameters", "参数"): sum(parameters(spec).values()), "d_model": spec.d_model, say("layers", "层"): depth},
        training={say("steps", "步数"): entries[-1]["step"] if entries else recipe.steps, say("optimiser", "优化器"): recipe.optimizer,
                  say("seconds", "秒"): round(entries[-1]["seconds"]) if entries else 0},
        scores=final.scores, example=final.example, command=use_of(task),
    )  # fmt: skip
    write_text(folder / "README.md", model_card(facts))
    draw_curves(folder / METRICS)
    return "\n".join(final.scores.values())


def use_of(task: Task) -> str:
    """The command that puts such a model to work: which stacks are present says it."""
    if task.spec.decoder is None:
        return "embed"
    return "generate" if task.spec.encoder is None else "translate"


def _depth(stack: Stack) -> int:
    return len(stack.each_layer())
