"""`qkv import` and `qkv export`: convert a model between formats and compare the outputs.

The exit code is 1 if the two models compute different results. See docs/guides/import-export.md.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from qkv.cli.options import Json
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.errors import QkvError, near_miss
from qkv.limits import NumberRange
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import WeightsMetadata
    from qkv.checkpoint.parity import ParityReport

FORMATS = ("huggingface", "ctranslate2", "gguf")
Inputs = Annotated[
    int,
    option(
        ...,
        "random inputs on which both models are compared; 0: no comparison",
        limit=NumberRange(0, 1_000),
    ),
]


def import_(
    folder: Path = argument(..., "a Hugging Face model folder"),
    out: Path = option(..., "model folder to write"),
    inputs: Inputs = 8,
    as_json: Json = False,
) -> int:
    """Import a Hugging Face checkpoint; no code of it is executed."""
    from qkv.checkpoint.convert import import_folder

    return print_report(out, *import_folder(folder, out, inputs), as_json)


def export(
    folder: Path = argument(..., "a model folder"),
    to: str = option(..., "format: huggingface, ctranslate2 or gguf"),
    out: Path = option(..., "folder or file to write"),
    int8: bool = option(False, "int8 quantization (ctranslate2, gguf)", "--int8"),
    float16: bool = option(False, "float16 weights (gguf)", "--float16"),
    inputs: Inputs = 8,
    as_json: Json = False,
) -> int:
    """Export a model to Hugging Face, CTranslate2 or GGUF format."""
    if to not in FORMATS:
        raise QkvError("--to", _("no format '{to}'", to=to), near_miss(to, FORMATS))
    dtype = weight_dtype(to, int8, float16)
    return print_report(out, *convert(folder, to, out, inputs, dtype), as_json)


def weight_dtype(to: str, int8: bool, float16: bool) -> str:
    """The data type of the weights; huggingface keeps that of the model."""
    if int8 and float16:
        raise QkvError("--int8", _("--int8 and --float16 are both given"), _("give one of them"))
    if int8 and to == "huggingface":
        wrong = _("{to} is written in the data type of the model", to=to)
        raise QkvError("--int8", wrong, _("use --to ctranslate2 or --to gguf"))
    if float16 and to != "gguf":
        raise QkvError("--float16", _("not supported by {to}", to=to), _("use --to gguf"))
    return "int8" if int8 else "float16" if float16 else "float32"


def convert(
    folder: Path, to: str, out: Path, inputs: int, dtype: str
) -> "tuple[WeightsMetadata, ParityReport | None]":
    """Write the model in the format `to`; return its metadata and the comparison."""
    if to == "ctranslate2":
        from qkv.checkpoint.ctranslate2.export import export_ctranslate2

        return export_ctranslate2(folder, out, inputs, dtype == "int8")
    if to == "gguf":
        from qkv.checkpoint.gguf.export import export_gguf

        return export_gguf(folder, out, inputs, dtype)
    from qkv.checkpoint.convert import export_folder

    return export_folder(folder, out, inputs)


def print_report(
    out: Path, metadata: "WeightsMetadata", report: "ParityReport | None", as_json: bool
) -> int:
    """Print the metadata and the comparison; return 1 if the results differ."""
    if as_json:
        parity = {**asdict(report), "same": report.same} if report else None
        print_json({"folder": str(out), "metadata": asdict(metadata), "report": parity})
    else:
        print(_("{out}: {family}, {parameters:,} parameters, {dtype}", out=out, **asdict(metadata)))
        print("\n".join(lines(report)) if report else _("– not compared (--inputs 0)"))
    return int(report is not None and not report.same)


def lines(report: "ParityReport") -> list[str]:
    symbol = "✓" if report.same else "✗"
    criterion = _("same greedy output") if report.greedy else _("within the tolerance")
    return [
        _("{symbol} compared with {reference}", symbol=symbol, reference=report.reference),
        _(
            "  largest difference {largest:.1e} (tolerance {tolerance:.1e}), "
            "{criterion}: {n_same}/{n_inputs}",
            largest=report.max_difference,
            criterion=criterion,
            **asdict(report),
        ),
        *(
            f"  {name}  {file['bytes']:,}  sha256 {file['sha256']}"
            for name, file in report.files.items()
        ),
    ]
