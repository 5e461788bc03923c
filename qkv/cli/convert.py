"""`qkv import` and `qkv export`: other people's checkpoints, and ours in other people's software.

In: a folder. Out: a folder of the other kind and a report; exit code 1 if the two do not compute the same.
Told in docs/convert.md.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from qkv.errors import QkvError, near_miss
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import WeightsMetadata
    from qkv.checkpoint.parity import Report

FORMATS = ("huggingface", "ctranslate2", "gguf")
INPUTS = typer.Option(8, "--inputs", min=0, help=_("Inputs on which both are compared; 0: none."))
JSON = typer.Option(False, "--json", help=_("Print JSON, for programs."))


def import_(
    folder: Path = typer.Argument(help=_("A Hugging Face folder.")),
    out: Path = typer.Option(..., "--out", help=_("Where our folder goes.")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Read a checkpoint of another family; nothing of it is run."""
    from qkv.checkpoint.convert import import_folder

    return tell(out, *import_folder(folder, out, inputs), as_json)


def export(
    folder: Path = typer.Argument(help=_("A model folder.")),
    to: str = typer.Option(..., "--to", help=_("The format: huggingface, ctranslate2, gguf.")),
    out: Path = typer.Option(..., "--out", help=_("Where their folder or file goes.")),
    int8: bool = typer.Option(False, "--int8", help=_("8 bits a weight (ctranslate2, gguf).")),
    float16: bool = typer.Option(False, "--float16", help=_("16 bits a weight (gguf).")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Write a model folder so that other software loads it."""
    if to not in FORMATS:
        raise QkvError("--to", _("no format '{to}'", to=to), near_miss(to, FORMATS))
    return tell(out, *written(folder, to, out, inputs, number_type(to, int8, float16)), as_json)


def number_type(to: str, int8: bool, float16: bool) -> str | None:
    """How weights are stored; None where the format keeps them as they are."""
    if int8 and float16:
        raise QkvError("--int8", _("8 or 16 bits a weight, not both"), _("give one of them"))
    if int8 and to == "huggingface":
        raise QkvError(
            "--int8", _("{to} is written as stored", to=to), _("use --to ctranslate2 or --to gguf")
        )
    if float16 and to != "gguf":
        raise QkvError("--float16", _("{to} does not take it", to=to), _("use --to gguf"))
    return None if to == "huggingface" else "int8" if int8 else "float16" if float16 else "float32"


def written(
    folder: Path, to: str, out: Path, inputs: int, dtype: str | None
) -> "tuple[WeightsMetadata, Report | None]":
    """The model in the format `to`: its metadata, and how the two compare."""
    if to == "ctranslate2":
        from qkv.checkpoint.ctranslate2.export import export_ctranslate2

        return export_ctranslate2(folder, out, inputs, dtype == "int8")
    if to == "gguf":
        from qkv.checkpoint.gguf.export import export_gguf

        return export_gguf(folder, out, inputs, dtype or "float32")
    from qkv.checkpoint.convert import export_folder

    return export_folder(folder, out, inputs)


def tell(out: Path, metadata: "WeightsMetadata", report: "Report | None", as_json: bool) -> int:
    """Print what was made and how it compares; 1 if it does not."""
    if as_json:
        proof = {**asdict(report), "same": report.same} if report else None
        print(
            json.dumps(
                {"folder": str(out), "metadata": asdict(metadata), "report": proof},
                ensure_ascii=False,
            )
        )
    else:
        print("\n".join([headline(out, metadata), *(lines(report) if report else [unproven()])]))
    return 0 if report is None or report.same else 1


def headline(out: Path, metadata: "WeightsMetadata") -> str:
    return _(
        "{out}: {family}, {parameters:,} parameters, {dtype}",
        out=out,
        family=metadata.family,
        parameters=metadata.parameters,
        dtype=metadata.dtype,
    )


def lines(report: "Report") -> list[str]:
    mark, same = ("✓" if report.same else "✗"), f"{report.n_same}/{report.n_inputs}"
    what = _("same greedy text") if report.greedy else _("within rounding")
    return [
        _("{mark} compared with {against}", mark=mark, against=report.against),
        _(
            "  largest difference {largest:.1e} (rounding: up to {tolerance:.1e}), {what} {same}",
            largest=report.largest,
            tolerance=report.tolerance,
            what=what,
            same=same,
        ),
        *(
            f"  {name}  {one['bytes']:,}  sha256 {one['sha256']}"
            for name, one in report.files.items()
        ),
    ]


def unproven() -> str:
    return _("– not compared (--inputs 0)")
