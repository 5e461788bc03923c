"""`qkv model`: write a spec, show a spec and its tensor shapes. See docs/explanation/model.md."""

import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Typer

from qkv.cli.options import SEQ_LEN_LIMIT, Batch, Json, Model
from qkv.cli.output import print_json
from qkv.cli.parameters import argument, option
from qkv.files import check_output
from qkv.messages import _
from qkv.text.lines import write_text

if TYPE_CHECKING:
    from qkv.model.shapes import ModuleShapes
    from qkv.model.spec import Spec

DEFAULT_SEQ_LEN = 128

app = Typer(no_args_is_help=True, help=_("Write or show the spec of a model."))


@app.command(help=_("Write a model.json from a preset, its arguments and overrides."))
def new(
    preset: str = argument(..., "a preset or a model.json"),
    set_: list[str] | None = option(
        None,
        "an argument of the preset, or a path in model.json such as "
        "decoder.layers.0.mixer.n_kv_heads",
        "--set",
        metavar="KEY=VALUE",
    ),
    out: Path | None = option(None, "file to write; default: print"),
) -> None:
    if out is not None:
        check_output(out, [Path(preset)])
    from qkv.model.check_spec import check_spec
    from qkv.model.model_option import build_spec, complete_option
    from qkv.model.spec_io import to_json
    from qkv.train.recipe_reader import read_settings

    spec = build_spec(
        complete_option({"preset": preset, **dict(read_settings(set_ or []))}, preset)
    )
    check_spec(spec, "model")
    if out is None:
        print(to_json(spec), end="")
    else:
        write_text(out, to_json(spec))


@app.command(help=_("Show the spec and the shapes of weights and activations, layer by layer."))
def show(
    model: Model,
    batch: Batch = 1,
    seq_len: int | None = option(None, "tokens per sequence; default 128", limit=SEQ_LEN_LIMIT),
    as_json: Json = False,
) -> None:
    from qkv.model.shapes import shapes_of

    spec = find_spec(model)
    length = seq_len or min(DEFAULT_SEQ_LEN, spec.max_len)
    modules = shapes_of(spec, batch, length)
    n_parameters = sum(
        module.repeat * prod(shape) for module in modules for shape in module.weights.values()
    )
    report: dict[str, Any] = {
        "model": model,
        "spec": asdict(spec),
        "batch": batch,
        "seq_len": length,
        "parameters": n_parameters,
        "modules": list(map(asdict, modules)),
    }
    if as_json:
        print_json(report, indent=2)
        return
    heading = _(
        "\n{n_parameters:,} parameters; activations of {batch} x {seq_len} tokens\n",
        n_parameters=n_parameters,
        **report,
    )
    print(*spec_tree(report["spec"]), heading, *table(modules), sep="\n")


def find_spec(model: str) -> "Spec":
    """The spec of a preset, a file or a folder; write ./gpt2 for a folder named like a preset."""
    from qkv.checkpoint.load import load_spec
    from qkv.model.model_option import build_spec, complete_option, is_file
    from qkv.model.presets import PRESETS

    path = Path(model)
    if model not in PRESETS and not is_file(model) and (path.is_dir() or len(path.parts) > 1):
        return load_spec(path)
    return build_spec(complete_option(model, model))


def spec_tree(tree: dict[str, Any], indent: str = "") -> list[str]:
    """The lines of a spec as a tree; the path to a line is a KEY of --set."""
    lines = []
    for key, value in tree.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if not isinstance(value, dict):
            lines += [] if key == "kind" and indent else [f"{indent}{key}: {json.dumps(value)}"]
        else:
            lines += [
                f"{indent}{key}: {value.get('kind', '')}".rstrip(),
                *spec_tree(value, indent + "  "),
            ]
    return lines


def table(modules: "list[ModuleShapes]") -> list[str]:
    """The modules as an indented tree with columns: equal layers, activation, weights."""
    rows = [(_("module"), _("layers"), _("activation"), _("weights"))]
    for module in modules:
        # encoder, layers 0, attn, norm
        *parents, name = module.name.replace(".layers.", ".layers ").split(".")
        weights = ", ".join(f"{key} {shape}" for key, shape in module.weights.items())
        repeat = f"x {module.repeat}" if name.startswith("layers ") else ""
        rows.append(("  " * len(parents) + name, repeat, str(module.activation or ""), weights))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
