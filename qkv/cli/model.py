"""`qkv model`: write the spec of a model, show its tree and its shapes. Told in docs/model.md."""

import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.language import say

if TYPE_CHECKING:
    from qkv.model.shapes import ModuleShapes
    from qkv.model.spec import Spec

DEFAULT_LENGTH = 128

app = typer.Typer(no_args_is_help=True, help=say("Write or show the spec of a model.", "写出或显示模型的 spec。"))
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=say(
    "an argument of the preset, or a path in model.json such as decoder.layers.0.mixer.n_kv_heads",
    "预设的参数，或 model.json 中的路径，如 decoder.layers.0.mixer.n_kv_heads"))]
Out = Annotated[Path | None, typer.Option(help=say("file to write; else it is printed", "写入的文件；不给则打印"))]


@app.command(help=say("Write a model.json from a preset, its arguments and overrides.", "由预设、其参数和改写写出 model.json。"))
def new(
    preset: Annotated[str, typer.Argument(help=say("a preset or a model.json", "预设名或 model.json"))],
    set_: Settings = None, out: Out = None,
) -> None:
    from qkv.model.door import check, to_json
    from qkv.model.model_option import build_spec, complete_option
    from qkv.text.lines import write_text
    from qkv.train.recipe_reader import read_settings

    spec = build_spec(complete_option({"preset": preset, **dict(read_settings(set_ or []))}, preset))
    check(spec, "model")
    if out is None:
        print(to_json(spec), end="")
    else:
        write_text(out, to_json(spec))


@app.command(help=say("Show the spec and the shapes of weights and activations, layer by layer.", "显示 spec，以及逐层的权重与激活形状。"))
def show(
    model: Annotated[str, typer.Argument(help=say(
        "a preset, a model.json or a model folder (ours or Hugging Face's)", "预设名、model.json 或模型文件夹（我们的或 Hugging Face 的）"))],
    batch: Annotated[int, typer.Option(min=1, help=say("sequences of a batch", "每批序列数"))] = 1,
    seq_len: Annotated[int | None, typer.Option(min=1, help=say("tokens of a sequence; else 128", "每个序列的词元数；默认 128"))] = None,
    as_json: Annotated[bool, typer.Option("--json", help=say("for a program", "供程序读取"))] = False,
) -> None:
    from qkv.model.shapes import shapes_of

    spec = find_spec(model)
    length = seq_len or min(DEFAULT_LENGTH, spec.max_len)
    modules = shapes_of(spec, batch, length)
    weights = sum(one.repeat * prod(shape) for one in modules for shape in one.weights.values())
    if as_json:
        facts: dict[str, Any] = {"model": model, "spec": asdict(spec), "batch": batch, "seq_len": length, "parameters": weights}
        print(json.dumps(facts | {"modules": [asdict(one) for one in modules]}, indent=2, ensure_ascii=False))
        return
    print("\n".join(spec_tree(asdict(spec))))
    print(say(f"\n{weights:,} parameters; activations of {batch} x {length} tokens\n",
              f"\n{weights:,} 个参数；激活按 {batch} x {length} 个词元\n"))
    print("\n".join(table(modules)))


def find_spec(model: str) -> "Spec":
    """The spec of a preset, a file or a folder; presets come first, so write ./gpt2 for a folder of that name."""
    from qkv.checkpoint.load import load_spec
    from qkv.model.model_option import build_spec, complete_option, is_file
    from qkv.model.presets import PRESETS

    path = Path(model)
    if model not in PRESETS and not is_file(model) and (path.is_dir() or len(path.parts) > 1):
        return load_spec(path)
    return build_spec(complete_option(model, model))


def spec_tree(tree: dict[str, Any], indent: str = "") -> list[str]:
    """model.json as lines; an object begins with its kind, and a path to a line is what --set takes."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if not isinstance(value, dict):
            lines += [] if key == "kind" and indent else [f"{indent}{key}: {json.dumps(value)}"]
        else:
            lines += [f"{indent}{key}: {value.get('kind', '')}".rstrip(), *spec_tree(value, indent + "  ")]
    return lines


def table(modules: "list[ModuleShapes]") -> list[str]:
    """The modules as an indented tree with three columns: layers alike, activation, weights."""
    rows = [(say("module", "模块"), say("layers", "层数"), say("activation", "激活"), say("weights", "权重"))]
    for one in modules:
        *above, name = one.name.replace(".layers.", ".layers ").split(".")  # encoder, layers 0, attn, norm
        weights = ", ".join(f"{key} {shape}" for key, shape in one.weights.items())
        rows.append(("  " * len(above) + name, f"x {one.repeat}" if name.startswith("layers ") else "", str(one.activation or ""), weights))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d}".rstrip() for a, b, c, d in rows]
