"""`qkv model`: write the spec of a model, show its tree and its shapes. Told in docs/model.md."""

import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.messages import _

if TYPE_CHECKING:
    from qkv.model.shapes import ModuleShapes
    from qkv.model.spec import Spec

DEFAULT_LENGTH = 128

app = typer.Typer(no_args_is_help=True, help=_("Write or show the spec of a model."))
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help=_(
            "an argument of the preset, or a path in model.json such as decoder.layers.0.mixer.n_kv_heads"
        ),
    ),
]
Out = Annotated[Path | None, typer.Option(help=_("file to write; else it is printed"))]


@app.command(help=_("Write a model.json from a preset, its arguments and overrides."))
def new(
    preset: Annotated[str, typer.Argument(help=_("a preset or a model.json"))],
    set_: Settings = None,
    out: Out = None,
) -> None:
    from qkv.model.door import check, to_json
    from qkv.model.model_option import build_spec, complete_option
    from qkv.text.lines import write_text
    from qkv.train.recipe_reader import read_settings

    spec = build_spec(
        complete_option({"preset": preset, **dict(read_settings(set_ or []))}, preset)
    )
    check(spec, "model")
    if out is None:
        print(to_json(spec), end="")
    else:
        write_text(out, to_json(spec))


@app.command(help=_("Show the spec and the shapes of weights and activations, layer by layer."))
def show(
    model: Annotated[
        str,
        typer.Argument(help=_("a preset, a model.json or a model folder (ours or Hugging Face's)")),
    ],
    batch: Annotated[int, typer.Option(min=1, help=_("sequences of a batch"))] = 1,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help=_("tokens of a sequence; else 128"))
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help=_("for a program"))] = False,
) -> None:
    from qkv.model.shapes import shapes_of

    spec = find_spec(model)
    length = seq_len or min(DEFAULT_LENGTH, spec.max_len)
    modules = shapes_of(spec, batch, length)
    weights = sum(one.repeat * prod(shape) for one in modules for shape in one.weights.values())
    if as_json:
        facts: dict[str, Any] = {
            "model": model,
            "spec": asdict(spec),
            "batch": batch,
            "seq_len": length,
            "parameters": weights,
        }
        print(
            json.dumps(
                facts | {"modules": [asdict(one) for one in modules]}, indent=2, ensure_ascii=False
            )
        )
        return
    print("\n".join(spec_tree(asdict(spec))))
    print(
        _(
            "\n{weights:,} parameters; activations of {batch} x {length} tokens\n",
            weights=weights,
            batch=batch,
            length=length,
        )
    )
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
            lines += [
                f"{indent}{key}: {value.get('kind', '')}".rstrip(),
                *spec_tree(value, indent + "  "),
            ]
    return lines


def table(modules: "list[ModuleShapes]") -> list[str]:
    """The modules as an indented tree with three columns: layers alike, activation, weights."""
    rows = [(_("module"), _("layers"), _("activation"), _("weights"))]
    for one in modules:
        *above, name = one.name.replace(".layers.", ".layers ").split(
            "."
        )  # encoder, layers 0, attn, norm
        weights = ", ".join(f"{key} {shape}" for key, shape in one.weights.items())
        rows.append(
            (
                "  " * len(above) + name,
                f"x {one.repeat}" if name.startswith("layers ") else "",
                str(one.activation or ""),
                weights,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d}".rstrip() for a, b, c, d in rows
    ]
