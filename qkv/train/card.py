"""Model card of a trained model: README.md and curves.png in the run folder, and the final scores.

See docs/guides/training.md.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.messages import _
from qkv.text.lines import write_text
from qkv.train.card_facts import Changes, change_facts, data_facts, limits, recipe_facts
from qkv.train.metrics import CURVES, METRICS, draw_curves, read_metrics
from qkv.train.parameter_groups import group_counts
from qkv.train.task import FinalEvaluation, Pipeline, Table, Task


@dataclass(frozen=True, kw_only=True)
class ModelCard(FinalEvaluation):
    """The content of a model card, each table as name -> value."""

    folder: str
    model: Table
    training: Table
    command: str = "translate"  # or generate, or embed
    limits: Sequence[str] = ()


def write_card(folder: Path, task: Task, pipeline: Pipeline, changes: Changes = ()) -> str:
    """Evaluate the published model, write its card and curves; returns the scores."""
    recipe, spec, final = task.recipe, task.spec, task.evaluate(pipeline)
    last = (read_metrics(folder / METRICS) or [{"step": recipe.steps, "seconds": 0}])[-1]
    n_layers = [len(stack.each_layer()) for stack in (spec.encoder, spec.decoder) if stack]
    card = ModelCard(
        folder=str(folder),
        model={
            _("parameters"): sum(weight.numel() for weight in pipeline.model.parameters()),
            "d_model": spec.d_model,
            _("layers"): " + ".join(map(str, n_layers)),
        },
        training={
            **recipe_facts(recipe, last["step"]),
            **change_facts(changes),
            **group_counts(pipeline.model, recipe),
            _("seconds"): round(last["seconds"]),
        },
        command=command_of(task),
        limits=limits(recipe, spec),
        **{**vars(final), "data": {**data_facts(recipe, final.n_pairs), **final.data}},
    )
    write_text(folder / "README.md", card_text(card))
    draw_curves(folder / METRICS)
    return "\n".join(final.scores.values())


def command_of(task: Task) -> str:
    """The command that runs the model: translate, generate or embed, by its stacks."""
    if task.spec.decoder is None:
        return "embed"
    return "generate" if task.spec.encoder is None else "translate"


def card_text(card: ModelCard) -> str:
    """The README.md of a trained model: usage, data, model, training and scores."""
    scores = "\n\n".join(f"{name}:\n```\n{lines}\n```" for name, lines in card.scores.items())
    usage = f"```console\n{_console(card)}\n```\n```python\n{_python(card)}\n```"
    parts = [
        f"# {Path(card.folder).name}",
        _section(_("Usage"), usage),
        _section(_("Data"), _table(card.data)),
        _section(_("Model"), _table(card.model)),
        _section(_("Training"), _table(card.training)),
        "![{}]({})".format(_("learning curves"), CURVES),
        _section(_("Scores"), scores or _("Not measured yet.")),
        _section(_("Limits"), "\n".join(f"- {line}" for line in card.limits)),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, body: str) -> str:
    return f"## {title}\n{body}"


def _console(card: ModelCard) -> str:
    """The command of the example with its output; `generate` prints the prompt too."""
    source, target = card.example
    command = f"$ qkv {card.command} {shlex.quote(card.folder)}"
    if card.command == "embed":
        return f"{command} sentences.txt --out vectors.npy"
    options = "".join(
        f" --{name.replace('_', '-')} {value}" for name, value in card.options.items()
    )
    output = source + target if card.command == "generate" else target
    return f"{command} {shlex.quote(source)}{options}\n{output}"


def _python(card: ModelCard) -> str:
    source, target = card.example
    name = {"translate": "translator", "generate": "generator", "embed": "embedder"}[card.command]
    folder, sources = (json.dumps(text, ensure_ascii=False) for text in (card.folder, [source]))
    arguments = ", ".join(
        [sources, *(f"{option}={value!r}" for option, value in card.options.items())]
    )
    output = f"[{target}]" if card.command == "embed" else [target]
    return f"import qkv\n{name} = qkv.load({folder})\n{name}({arguments})  # {output}"


def _table(rows: Table) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows.items()]
    return "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
