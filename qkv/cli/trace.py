"""`qkv trace`: every step of a forward pass in the terminal. See docs/guides/inspect.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.options import Device, Folder, Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.explore.step_summary import TensorSummary


def trace(
    folder: Folder,
    text: str = argument(..., "input text"),
    layer: int | None = option(None, "layer, from 0; default: every layer"),
    head: int | None = option(None, "head, from 0; its values are printed if they are few"),
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Print every step of the model on a text: name, shape, statistics or values."""
    from qkv.cli.explore import open_explorer, page_errors
    from qkv.explore.explorer import check_length
    from qkv.explore.passes import Pass
    from qkv.explore.step_summary import summarize

    with page_errors("qkv trace"):
        check_length(text)
        explored = open_explorer(Path(folder), device).explored
        report = summarize(Pass(explored, text, ()), layer, head)
    if as_json:
        steps = [step.as_json() for step in report["steps"]]
        print_json({"model": str(folder), **report, "steps": steps})
    else:
        print(*report_lines(report), sep="\n")


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The tokens, a row for each tensor, with its values below it, and the next token."""
    for side, tokens in report["tokens"].items():
        yield f"{side}: {' '.join(tokens)}"
    steps = report["steps"]
    header = (_("name"), _("shape"), _("mean"), _("std"), _("min"), _("max"))
    rows = [header, *map(row_of, steps)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row, step in zip(rows, [None, *steps], strict=True):
        name, shape, *numbers = row
        cells = [name.ljust(widths[0]), shape.ljust(widths[1])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[2:], strict=True)]
        yield "  ".join(cells).rstrip()
        yield from () if step is None else value_lines(step)
    if report["next"]:
        yield _("next token: {token} (probability {probability:.3f})", **report["next"])


def row_of(step: "TensorSummary") -> tuple[str, ...]:
    numbers = (step.mean, step.std, step.min, step.max)
    return step.name, str(step.shape), *("" if x is None else f"{x:.4g}" for x in numbers)


def value_lines(step: "TensorSummary") -> Iterator[str]:
    """The values of a small tensor, a line for each row; a masked one is a dash."""
    if step.values is None:
        return
    rows = step.values if len(step.shape) > 1 else [step.values]
    labels = step.labels or [""] * len(rows)
    for label, row in zip(labels, rows, strict=True):
        yield f"    {label:<10}{' '.join(map(cell, flat(row)))}".rstrip()


def cell(value: float | int | None) -> str:
    text = "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
    return text.rjust(7)


def flat(values: Any) -> Iterator[Any]:
    """The numbers of nested lists, in order."""
    if isinstance(values, list):
        for item in values:
            yield from flat(item)
    else:
        yield values
