"""The report of a study: study.json, a page and a figure in both languages, a terminal table.

See docs/explanation/studies/index.md, "Files".
"""

import math
import shlex
import sys
from pathlib import Path
from typing import Any

from qkv.files import atomic_path
from qkv.messages import LANGUAGES, _, current_language, set_language
from qkv.study.config import StudyConfig
from qkv.study.question import STUDIES, Column, Experiment
from qkv.study.results import Results
from qkv.study.statistics import SIGNIFICANT
from qkv.study.store import write_json
from qkv.study.worker import finite

SUFFIX = {"en": "", "zh": ".zh"}
Row = list[str]
WIDTH = 280  # columns of the tables in a file or pipe


# ── Tables ────────────────────────────────────────────────────────────────────────────────────
def table_of(results: Results, experiment: str) -> tuple[Row, list[Row]]:
    """The headings and rows of an experiment; columns that no condition has are left out."""
    described, summary = results.question.experiments[experiment], results.summary(experiment)
    columns = [c for c in described.columns if any(c.key in row for row in summary.values())]
    compared = any("compared" in row for row in summary.values())
    headings = [_("condition"), *(_(column.title) for column in columns)]
    headings += [_("difference"), _("p")] if compared else []
    rows = [
        [
            described.conditions[name].text,
            *(cell(row, column) for column in columns),
            *(comparison_cells(row, columns[0]) if compared else []),
        ]
        for name, row in summary.items()
    ]
    return headings, rows


def cell(row: dict[str, Any], column: Column) -> str:
    """Mean ± standard deviation; the deviation of numbers that are always the same is left out."""
    if column.key not in row:
        return ""
    mean, deviation = row[column.key]["mean"], row[column.key]["deviation"]
    if not math.isfinite(mean):
        return _("not finite")
    text = format(mean, column.format)
    if math.isnan(deviation) or deviation == 0:
        return text
    return f"{text} ± {format(deviation, column.format)}"


def comparison_cells(row: dict[str, Any], column: Column) -> Row:
    """The difference to the first condition and its p-value, with * if it is significant."""
    if "compared" not in row or not math.isfinite(row["compared"]["difference"]):
        return ["", ""]
    p = row["compared"]["p"]
    star = "*" if p < SIGNIFICANT else ""
    difference = format(row["compared"]["difference"], "+" + column.format.lstrip("+"))
    return [difference, "" if math.isnan(p) else f"{p:.3f}{star}"]


def print_tables(results: Results) -> None:
    """The tables in the terminal."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    width = None if sys.stdout.isatty() else WIDTH
    console = Console(highlight=False, width=width)
    for name, experiment in results.question.experiments.items():
        headings, rows = table_of(results, name)
        table = Table(title=_(experiment.title), title_justify="left", box=None, pad_edge=False)
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="right" if index else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print(escape(equal_text(experiment)), "", soft_wrap=True)


def equal_text(experiment: Experiment) -> str:
    return _("Held equal: {equal}", equal=_(experiment.equal))


# ── Files ─────────────────────────────────────────────────────────────────────────────────────
def write_report(
    name: str, results: Results, folder: Path, config: StudyConfig, steps: int
) -> dict[str, Any]:
    """Write study.json, and the page and figure in both languages; returns study.json."""
    record = record_of(name, results, config, steps)
    write_json(folder / "study.json", record)
    language = current_language()
    try:
        for other in LANGUAGES:
            set_language(other)
            write_page(name, results, folder, config, steps)
    finally:
        set_language(language)
    return record


def record_of(name: str, results: Results, config: StudyConfig, steps: int) -> dict[str, Any]:
    """The study as JSON: settings, conditions, measurements, summaries, conclusion."""
    experiments = {
        key: {
            "title": _(experiment.title),
            "equal": _(experiment.equal),
            "conditions": {
                condition: {"label": described.text, "settings": dict(described.settings)}
                for condition, described in experiment.conditions.items()
            },
            "summary": results.summary(key),
            "measurements": results.measurements[key],
        }
        for key, experiment in results.question.experiments.items()
    }
    return finite(
        {
            "study": name,
            "question": _(STUDIES[name].question),
            "seeds": config.seeds,
            "steps": steps,
            "conclusion": results.question.conclude(results),
            "published": _(results.question.published),
            "command": command_of(name, config, steps),
            "experiments": experiments,
        }
    )


def write_page(name: str, results: Results, folder: Path, config: StudyConfig, steps: int) -> None:
    """README.md and study.png in the current language."""
    from qkv.study.figure import draw  # importing matplotlib is slow

    suffix, question = SUFFIX[current_language()], results.question
    title = _(STUDIES[name].question)
    draw(results, title, folder / f"study{suffix}.png")
    parts = [
        f"# {title}",
        question.conclude(results),
        f"![{name}](study{suffix}.png)",
        *(section(results, key) for key in question.experiments),
        _("## Published results"),
        _(question.published),
        _("## Repeat"),
        f"```\n{command_of(name, config, steps)}\n```",
        seeds_text(config, steps),
    ]
    with atomic_path(folder / f"README{suffix}.md") as path:
        path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def section(results: Results, experiment: str) -> str:
    """The heading, table and equal quantities of an experiment in Markdown."""
    described = results.question.experiments[experiment]
    title = _(described.title)
    headings, rows = table_of(results, experiment)
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    return f"## {title}\n\n{table}\n\n{equal_text(described)}"


def seeds_text(config: StudyConfig, steps: int) -> str:
    """What the numbers of the tables are."""
    text = _(
        "Mean ± standard deviation over {n} seeds; difference and p (paired t-test) are those to "
        "the first condition, * is p < 0.05.",
        n=config.seeds,
    )
    return " ".join([text, _("{steps} training steps.", steps=steps)]) if steps else text


def command_of(name: str, config: StudyConfig, steps: int) -> str:
    """The command that repeats the study with the same number of steps."""
    parts = ["qkv", "study", name, "--seeds", str(config.seeds)]
    parts += ["--steps", str(steps)] if steps else []
    for option in ("text", "source", "target"):
        if (path := getattr(config, option)) is not None:
            parts += [f"--{option}", path]
    return shlex.join(parts)
