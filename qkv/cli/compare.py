"""`qkv compare`: settings, scores and curves of training runs. See docs/guides/training.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.cli.options import Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError
from qkv.files import PICTURES, check_output
from qkv.messages import _


def compare(
    folders: list[Path] = argument(..., "run folders of qkv train", metavar="RUN RUN..."),
    out: Path = option(Path("compare.png"), "PNG file to write"),
    as_json: Json = False,
) -> None:
    """Compare training runs: curves in one figure, the settings that differ, the best scores."""
    check_output(out, folders, PICTURES)
    if len(folders) < 2:
        raise QkvError("qkv compare", _("only one run"), _("give two or more run folders"))
    from qkv.train.compare import different_settings, draw_comparison, read_run, scores

    runs = [read_run(folder) for folder in folders]
    report: dict[str, Any] = {
        "runs": [run.name for run in runs],
        "settings": different_settings(runs),
        "scores": scores(runs),
        "figure": str(draw_comparison(runs, out)),
    }
    if as_json:
        print_json(report)
        return
    print(*table(_("setting"), report["runs"], report["settings"]), sep="\n")
    print(*table("\n" + _("best score"), report["runs"], report["scores"]), sep="\n")
    print(f"\n{out}")


def table(title: str, runs: list[str], rows: Mapping[str, list[Any]]) -> list[str]:
    """A line for each name, with the value of each run in a column."""
    cells = [[title, *runs], *([name, *map(_cell, values)] for name, values in rows.items())]
    widths = [max(len(cell.strip("\n")) for cell in column) for column in zip(*cells, strict=True)]
    lines = []
    for first, *others in cells:
        padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        margin = " " * (widths[0] - len(first.strip("\n")))
        lines.append("  ".join([first + margin, *padded]))
    return lines


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.5g}"
        case str():
            return value
    return json.dumps(value, ensure_ascii=False)
