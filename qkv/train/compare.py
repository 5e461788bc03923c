"""Compare training runs: the settings that differ, the best scores, and the curves in one figure.

See docs/guides/training.md, "Comparing runs".
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.metrics import METRICS, Entry, curves_of, named_losses, read_metrics
from qkv.train.recipe_reader import load_yaml, rename_old

RECIPE = "train.yaml"
# Scores of a validation; of several validations the best one counts.
SMALLER_IS_BETTER = ("cross_entropy", "perplexity", "bits_per_byte", "contrastive_loss", "mlm_loss")
LARGER_IS_BETTER = ("bleu", "exact", "recall_at_1")


class Run(NamedTuple):
    """A run folder: its name, the settings of its recipe by path, and its reports."""

    name: str
    settings: dict[str, Any]
    entries: list[Entry]


def read_run(folder: Path) -> Run:
    """Read the recipe and the metrics of a run folder."""
    if not folder.is_dir():
        raise QkvError(folder, _("no such folder"), _("give the folder of a training run"))
    if not (folder / RECIPE).is_file():
        wrong = _("not a training run: it has no {name}", name=RECIPE)
        raise QkvError(folder, wrong, _("give the folder of a training run"))
    settings = flat(rename_old(load_yaml(folder / RECIPE)))
    return Run(str(folder), settings, read_metrics(folder / METRICS))


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings by their path: flat({"model": {"layers": 2}}) == {"model.layers": 2}."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{path}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def different_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs: name -> value in each run, None if unset."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def scores(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Steps, tokens and seconds, and the best score of all validations: name -> value per run."""
    table = {
        name: [run.entries[-1].get(name) if run.entries else None for run in runs]
        for name in ("step", "seconds")
    }
    table["tokens"] = [_best(run, ("train",), "tokens", max) for run in runs]
    for names, better in ((SMALLER_IS_BETTER, min), (LARGER_IS_BETTER, max)):
        for name in names:
            table[name] = [_best(run, ("valid", "average"), name, better) for run in runs]
    return {name: row for name, row in table.items() if any(value is not None for value in row)}


def _best(run: Run, kinds: tuple[str, ...], name: str, better: Any) -> Any:
    """The best value of a metric in the reports of these kinds; None: it was not measured."""
    named = map(named_losses, run.entries)
    values = [entry[name] for entry in named if entry["kind"] in kinds and name in entry]
    return better((value for value in values if value is not None), default=None)


def draw_comparison(runs: Sequence[Run], path: Path) -> Path:
    """Draw the curves of all runs: a panel for each quantity, a color for each run."""
    from matplotlib.figure import Figure  # slow to import

    from qkv.evaluate.figures import fonts_with, save

    curves = [curves_of(run.entries) for run in runs]
    panels = list(dict.fromkeys(name for own in curves for name in own))
    if not panels:
        raise QkvError(runs[0].name, _("has no report yet"), _("train for more steps"))
    with fonts_with([*panels, *(run.name for run in runs), _("training"), _("validation")]):
        figure = Figure(figsize=(9, 2.8 * len(panels)), layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, name in zip(axes, panels, strict=True):
            for number, (run, own) in enumerate(zip(runs, curves, strict=True)):
                for label, points in own.get(name, {}).items():
                    panel.plot(
                        *zip(*points, strict=True),
                        color=f"C{number % 10}",
                        linestyle="-" if label == _("validation") else "--",
                        marker="." if len(points) < 60 else "",
                        label=f"{run.name}: {label}".replace("$", r"\$"),
                    )
            panel.set_ylabel(name)
            panel.grid(alpha=0.3)
            panel.legend(fontsize="small")
        axes[-1].set_xlabel(_("step"))
        return save(figure, path)
