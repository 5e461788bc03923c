"""The end of a run, told to people: the final score, the curves, the model card.

In: a trained folder and what `qkv.load` gives for it. Out: README.md and curves.png in the folder, and the score.
Told in docs/training.md, "What a run leaves behind".
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.messages import _
from qkv.model.spec import Stack
from qkv.plan.cost import parameters
from qkv.text.lines import write_text
from qkv.train.report import CURVES, METRICS, draw_curves, read_metrics
from qkv.train.task import Task


@dataclass(frozen=True)
class Facts:
    """What a model card tells, each table as name -> value."""

    folder: str
    data: Mapping[str, object]
    model: Mapping[str, object]
    training: Mapping[str, object]
    scores: Mapping[str, str]  # what was measured -> its lines
    example: tuple[str, str]  # a text and what this model makes of it
    command: str = "translate"  # or generate, or embed
    options: Mapping[str, object] = field(default_factory=dict)  # with which settings it made that


def write_card(folder: Path, task: Task, use: Callable[..., Any]) -> str:
    """Ask the task for its last word on the published model, and write down what it is and how good it is."""
    recipe, spec, final = task.recipe, task.spec, task.final(use)
    entries = read_metrics(folder / METRICS)
    depth = " + ".join(
        str(_depth(stack)) for stack in (spec.encoder, spec.decoder) if stack is not None
    )
    facts = Facts(
        folder=str(folder),
        data=final.data,
        model={
            _("parameters"): sum(parameters(spec).values()),
            "d_model": spec.d_model,
            _("layers"): depth,
        },
        training={
            _("steps"): entries[-1]["step"] if entries else recipe.steps,
            _("optimiser"): recipe.optimizer,
            _("seconds"): round(entries[-1]["seconds"]) if entries else 0,
        },
        scores=final.scores,
        example=final.example,
        command=use_of(task),
        options=final.options,
    )
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


def model_card(facts: Facts) -> str:
    """The README.md of a trained model: what it learned from, what it is, how good it is, how to use it."""
    scores = "\n\n".join(f"{name}:\n```\n{lines}\n```" for name, lines in facts.scores.items())
    usage = f"```console\n{_console(facts)}\n```\n```python\n{_python(facts)}\n```"
    parts = [
        f"# {Path(facts.folder).name}",
        _section(_("Use"), usage),
        _section(_("Data"), _table(facts.data)),
        _section(_("Model"), _table(facts.model)),
        _section(_("Training"), _table(facts.training)),
        "![{}]({})".format(_("learning curves"), CURVES),
        _section(_("Scores"), scores or _("Not measured yet.")),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n{body}"


def _console(facts: Facts) -> str:
    """The command that gives the example; vectors go to a file, and a writer's text follows its prompt."""
    source, target = facts.example
    start = f"$ qkv {facts.command} {shlex.quote(facts.folder)}"
    if facts.command == "embed":
        return f"{start} sentences.txt --out vectors.npy"
    options = "".join(
        f" --{name.replace('_', '-')} {value}" for name, value in facts.options.items()
    )
    return f"{start} {shlex.quote(source)}{options}\n{source + target if facts.command == 'generate' else target}"


def _python(facts: Facts) -> str:
    source, target = facts.example
    name = {"translate": "translator", "generate": "generator", "embed": "embedder"}[facts.command]
    given = ", ".join(
        [
            json.dumps([source], ensure_ascii=False),
            *(f"{name}={value!r}" for name, value in facts.options.items()),
        ]
    )
    gives = f"[{target}]" if facts.command == "embed" else [target]
    return f"import qkv\n{name} = qkv.load({json.dumps(facts.folder, ensure_ascii=False)})\n{name}({given})  # {gives}"


def _table(facts: Mapping[str, object]) -> str:
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _cell(value: object) -> str:
    return (
        (f"{value:,}" if isinstance(value, int) else str(value))
        .replace("|", "\\|")
        .replace("\n", " ")
    )
