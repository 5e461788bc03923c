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
from qkv.language import say

if TYPE_CHECKING:
    from qkv.checkpoint.loaded_model import WeightsMetadata
    from qkv.checkpoint.parity import Report

FORMATS = ("huggingface", "ctranslate2", "gguf")
INPUTS = typer.Option(8, "--inputs", min=0, help=say("Inputs on which both are compared; 0: none.", "比较多少个输入；0：不比较。"))
JSON = typer.Option(False, "--json", help=say("Print JSON, for programs.", "输出 JSON，供程序读取。"))


def import_(
    folder: Path = typer.Argument(help=say("A Hugging Face folder.", "Hugging Face 文件夹。")),
    out: Path = typer.Option(..., "--out", help=say("Where our folder goes.", "我们的文件夹写到哪里。")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Read a checkpoint of another family; nothing of it is run."""
    from qkv.checkpoint.convert import import_folder

    return tell(out, *import_folder(folder, out, inputs), as_json)


def export(
    folder: Path = typer.Argument(help=say("A model folder.", "模型文件夹。")),
    to: str = typer.Option(..., "--to", help=say("The format: huggingface, ctranslate2, gguf.", "格式：huggingface、ctranslate2、gguf。")),
    out: Path = typer.Option(..., "--out", help=say("Where their folder or file goes.", "他们的文件夹或文件写到哪里。")),
    int8: bool = typer.Option(False, "--int8", help=say("8 bits a weight (ctranslate2, gguf).", "每个权重 8 位（ctranslate2、gguf）。")),
    float16: bool = typer.Option(False, "--float16", help=say("16 bits a weight (gguf).", "每个权重 16 位（gguf）。")),
    inputs: int = INPUTS,
    as_json: bool = JSON,
) -> int:
    """Write a model folder so that other software loads it."""
    if to not in FORMATS:
        raise QkvError("--to", say(f"no format '{to}'", f"没有格式 '{to}'"), near_miss(to, FORMATS))
    return tell(out, *written(folder, to, out, inputs, number_type(to, int8, float16)), as_json)


def number_type(to: str, int8: bool, float16: bool) -> str | None:
    """How weights are stored; None where the format keeps them as they are."""
    if int8 and float16:
        raise QkvError("--int8", say("8 or 16 bits a weight, not both", "每个权重 8 位或 16 位，不能兼有"), say("give one of them", "请只给一个"))
    if int8 and to == "huggingface":
        raise QkvError("--int8", say(f"{to} is written as stored", f"{to} 按原精度写出"),
                       say("use --to ctranslate2 or --to gguf", "请用 --to ctranslate2 或 --to gguf"))
    if float16 and to != "gguf":
        raise QkvError("--float16", say(f"{to} does not take it", f"{to} 不支持"), say("use --to gguf", "请用 --to gguf"))
    return None if to == "huggingface" else "int8" if int8 else "float16" if float16 else "float32"


def written(folder: Path, to: str, out: Path, inputs: int, dtype: str | None) -> "tuple[WeightsMetadata, Report | None]":
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
        print(json.dumps({"folder": str(out), "metadata": asdict(metadata), "report": proof}, ensure_ascii=False))
    else:
        print("\n".join([headline(out, metadata), *(lines(report) if report else [unproven()])]))
    return 0 if report is None or report.same else 1


def headline(out: Path, metadata: "WeightsMetadata") -> str:
    return say(f"{out}: {metadata.family}, {metadata.parameters:,} parameters, {metadata.dtype}",
               f"{out}：{metadata.family}，{metadata.parameters:,} 个参数，{metadata.dtype}")


def lines(report: "Report") -> list[str]:
    mark, same = ("✓" if report.same else "✗"), f"{report.n_same}/{report.n_inputs}"
    what = say("same greedy text", "贪心文本相同") if report.greedy else say("within rounding", "在舍入范围内")
    return [
        say(f"{mark} compared with {report.against}", f"{mark} 对照：{report.against}"),
        say(f"  largest difference {report.largest:.1e} (rounding: up to {report.tolerance:.1e}), {what} {same}",
            f"  最大差异 {report.largest:.1e}（舍入允许 {report.tolerance:.1e}），{what} {same}"),
        *(f"  {name}  {one['bytes']:,}  sha256 {one['sha256']}" for name, one in report.files.items()),
    ]


def unproven() -> str:
    return say("– not compared (--inputs 0)", "– 未比较（--inputs 0）")
