"""The figure of a study: one row of panels per experiment, labels in the current language."""

import math
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qkv.evaluate.figures import fonts_with, save
from qkv.messages import _
from qkv.study.question import Experiment, Lines, Panel, Points, Values
from qkv.study.results import Results
from qkv.study.statistics import deviation

PANEL_INCHES = (4.6, 3.4)
STYLES = ("-", "--", ":", "-.")  # after every 10 lines, which have the 10 colors of matplotlib


def draw(results: Results, title: str, path: Path) -> Path:
    """Draw the panels of all experiments."""
    rows = [(name, e) for name, e in results.question.experiments.items() if e.panels]
    columns = max(len(experiment.panels) for _name, experiment in rows)
    width, height = PANEL_INCHES
    with fonts_with(labels_of([experiment for _name, experiment in rows], title)):
        figure = Figure(figsize=(width * columns, height * len(rows) + 0.5), layout="constrained")
        grid = figure.subplots(len(rows), columns, squeeze=False)
        for (name, experiment), axes in zip(rows, grid, strict=True):
            for panel, axis in zip(experiment.panels, axes, strict=False):
                draw_panel(axis, panel, results, name)
            for axis in axes[len(experiment.panels) :]:
                axis.remove()
        figure.suptitle(title, parse_math=False)
        return save(figure, path)


def labels_of(experiments: Iterable[Experiment], title: str) -> list[str]:
    """All texts of the figure, to choose fonts."""
    labels = [title, _("{name} = {value}", name="", value="")]
    for experiment in experiments:
        labels += [condition.text for condition in experiment.conditions.values()]
        for panel in experiment.panels:
            labels += [_(panel.y_label), "" if isinstance(panel, Values) else _(panel.x_label)]
    return labels


def draw_panel(axis: Axes, panel: Panel, results: Results, experiment: str) -> None:
    """Draw one panel; what is not finite is left out."""
    axis.set_ylabel(_(panel.y_label), parse_math=False)
    if not isinstance(panel, Values) and panel.log_y:
        axis.set_yscale("log")
    match panel:
        case Values():
            draw_values(axis, panel, results, experiment)
            return
        case Lines():
            draw_lines(axis, panel, results, experiment)
        case Points():
            draw_points(axis, panel, results, experiment)
    axis.set_xlabel(_(panel.x_label), parse_math=False)
    if panel.log_x:
        axis.set_xscale("log", base=2)
    if len(axis.get_legend_handles_labels()[1]) > 1:
        axis.legend(fontsize=6, framealpha=0.5)


def draw_values(axis: Axes, panel: Values, results: Results, experiment: str) -> None:
    """One row per condition that has the number: the mean, with the standard deviation."""
    rows = [
        name for name in results.measurements[experiment] if has(results, experiment, name, panel.y)
    ]
    values = [results.values(experiment, name, panel.y) for name in rows]
    errors = [0.0 if math.isnan(error := deviation(found)) else error for found in values]
    labels = [results.label(experiment, name) for name in rows]
    axis.errorbar(list(map(fmean, values)), range(len(rows)), xerr=errors, fmt="o", capsize=3)
    axis.set_yticks(range(len(rows)), labels, fontsize=7, parse_math=False)
    axis.invert_yaxis()
    axis.set_ylabel("")
    axis.set_xlabel(_(panel.y_label), parse_math=False)
    axis.grid(axis="y", alpha=0.3)
    axis.locator_params(axis="x", nbins=5)


def draw_lines(axis: Axes, panel: Lines, results: Results, experiment: str) -> None:
    """One line per condition: the mean over seeds, with a band of the standard deviation."""
    drawn = [
        name for name in results.measurements[experiment] if has(results, experiment, name, panel.y)
    ]
    for index, name in enumerate(drawn):
        measured, style = results.measurements[experiment][name], STYLES[index // 10 % len(STYLES)]
        points = list(zip(*(found[panel.y] for found in measured), strict=False))
        means, errors = zip(*map(mean_and_deviation, points), strict=True)
        x = measured[0][panel.x][: len(means)]
        (line,) = axis.plot(x, means, label=results.label(experiment, name), linestyle=style)
        low = [mean - error for mean, error in zip(means, errors, strict=True)]
        high = [mean + error for mean, error in zip(means, errors, strict=True)]
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.2)


def draw_points(axis: Axes, panel: Points, results: Results, experiment: str) -> None:
    """One line per value of the setting `by`, through the means of its conditions."""
    lines: dict[Any, list[tuple[float, float, float]]] = {}
    for name, condition in results.question.experiments[experiment].conditions.items():
        if panel.x in condition.settings and has(results, experiment, name, panel.y):
            mean, error = mean_and_deviation(results.values(experiment, name, panel.y))
            line = lines.setdefault(condition.settings.get(panel.by), [])
            line.append((condition.settings[panel.x], mean, error))
    for by, points in lines.items():
        x, means, errors = zip(*sorted(points), strict=True)
        label = _("{name} = {value}", name=panel.by, value=by) if panel.by else None
        axis.errorbar(x, means, errors, marker="o", markersize=3, label=label, linewidth=1.3)


def has(results: Results, experiment: str, condition: str, key: str) -> bool:
    return key in results.measurements[experiment][condition][0]


def mean_and_deviation(values: Iterable[float | None]) -> tuple[float, float]:
    """Mean and standard deviation; NaN if a value is not finite, deviation 0 for one value."""
    known = [math.nan if value is None else value for value in values]
    error = deviation(known)
    return fmean(known), 0.0 if math.isnan(error) else error
