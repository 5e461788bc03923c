"""`qkv import` and `qkv export`: convert a model between formats and compare the outputs.

The exit code is 1 if the two models compute different results. See docs/convert.md.
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
    from qkv.checkpoint.parity import ParityReport

FORMATS = ("huggingface", "ctranslate2", "gguf")
INPUTS = typer.Option(
    8,
    "--inputs",
    min=0,
    help=_("random inputs on which both models are compared; 0: no comparison"),
)
JSON = typer.Option(False, "--json", help=_("print JSON"))


def import_(
    folder: Path = typer.Argument(help=_("a Hugging Face model folder")),
    out: Path = typer.Option(..., "--out", help=_("model folder to write")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Import a Hugging Face checkpoint; no code of it is executed."""
    from qkv.checkpoint.convert import import_folder

    return print_report(out, *import_folder(folder, out, inputs), as_json)


def export(
    folder: Path = typer.Argument(help=_("a model folder")),
    to: str = typer.Option(..., "--to", help=_("format: huggingface, ctranslate2 or gguf")),
    out: Path = typer.Option(..., "--out", help=_("folder or file to write")),
    int8: bool = typer.Option(False, "--int8", help=_("int8 quantization (ctranslate2, gguf)")),
    float16: bool = typer.Option(False, "--float16", help=_("float16 weights (gguf)")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Export a model to Hugging Face, CTranslate2 or GGUF format."""
    if to not in FORMATS:
        raise QkvError("--to", _("no format '{to}'", to=to), near_miss(to, FORMATS))
    dtype = weight_dtype(to, int8, float16)
    return print_report(out, *convert(folder, to, out, inputs, dtype), as_json)


def weight_dtype(to: str, int8: bool, float16: bool) -> str | None:
    """The data type of the weights; None if the format keeps that of the model."""
    if int8 and float16:
        raise QkvError("--int8", _("--int8 and --float16 are both given"), _("give one of them"))
    if int8 and to == "huggingface":
        raise QkvError(
            "--int8",
            _("{to} is written in the data type of the model", to=to),
            _("use --to ctranslate2 or --to gguf"),
        )
    if float16 and to != "gguf":
        raise QkvError("--float16", _("not supported by {to}", to=to), _("use --to gguf"))
    return None if to == "huggingface" else "int8" if int8 else "float16" if float16 else "float32"


def convert(
    folder: Path, to: str, out: Path, inputs: int, dtype: str | None
) -> "tuple[WeightsMetadata, ParityReport | None]":
    """Write the model in the format `to`; return its metadata and the comparison."""
    if to == "ctranslate2":
        from qkv.checkpoint.ctranslate2.export import export_ctranslate2

        return export_ctranslate2(folder, out, inputs, dtype == "int8")
    if to == "gguf":
        from qkv.checkpoint.gguf.export import export_gguf

        return export_gguf(folder, out, inputs, dtype or "float32")
    from qkv.checkpoint.convert import export_folder

    return export_folder(folder, out, inputs)


def print_report(
    out: Path, metadata: "WeightsMetadata", report: "ParityReport | None", as_json: bool
) -> int:
    """Print the metadata and the comparison; return 1 if the results differ."""
    if as_json:
        parity = {**asdict(report), "same": report.same} if report else None
        print(
            json.dumps(
                {"folder": str(out), "metadata": asdict(metadata), "report": parity},
                ensure_ascii=False,
            )
        )
    else:
        print(
            "\n".join([headline(out, metadata), *(lines(report) if report else [not_compared()])])
        )
    return 0 if report is None or report.same else 1


def headline(out: Path, metadata: "WeightsMetadata") -> str:
    return _(
        "{out}: {family}, {parameters:,} parameters, {dtype}",
        out=out,
        family=metadata.family,
        parameters=metadata.parameters,
        dtype=metadata.dtype,
    )


def lines(report: "ParityReport") -> list[str]:
    symbol = "✓" if report.same else "✗"
    criterion = _("same greedy output") if report.greedy else _("within the tolerance")
    return [
        _("{symbol} compared with {reference}", symbol=symbol, reference=report.reference),
        _(
            "  largest difference {largest:.1e} (tolerance {tolerance:.1e}), "
            "{criterion}: {n_same}/{n_inputs}",
            largest=report.max_difference,
            tolerance=report.tolerance,
            criterion=criterion,
            n_same=report.n_same,
            n_inputs=report.n_inputs,
        ),
        *(
            f"  {name}  {file['bytes']:,}  sha256 {file['sha256']}"
            for name, file in report.files.items()
        ),
    ]


def not_compared() -> str:
    return _("– not compared (--inputs 0)")
