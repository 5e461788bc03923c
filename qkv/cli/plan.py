"""`qkv plan`: what a model will cost, before anything is built.

In: a preset, a model.json or a model folder (ours or Hugging Face's), and the size of a pass. Out: tables (or JSON) of parameters, FLOPs and
bytes, the well-known formulas beside them, and hours of training. Told in docs/cost.md.
"""

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qkv.messages import _

if TYPE_CHECKING:
    from rich.table import Table

    from qkv.model.spec import Spec

DEFAULT_LENGTH = 512


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


def plan(
    model: str = typer.Argument(help=_("a preset, a model.json or a model folder")),
    batch: int = typer.Option(1, min=1, help=_("rows of a pass")),
    length: int = typer.Option(None, min=1, help=_("tokens of a row; else 512")),
    source_length: int = typer.Option(None, min=1, help=_("source tokens; else as many")),
    dtype: Dtype = typer.Option("float32", help=_("the type of the weights")),
    tokens: int = typer.Option(None, min=1, help=_("train on so many, both sides together")),
    gflops: float = typer.Option(None, min=1e-9, help=_("speed of a device; else measured")),
    devices: int = typer.Option(1, min=1, help=_("how many devices")),
    as_json: bool = typer.Option(False, "--json", help=_("for a program")),
) -> None:
    """Parameters, FLOPs, memory and time of a model, from its description alone."""
    from qkv.plan.cost import load_of

    spec = find_spec(model)
    load = load_of(spec, batch, length or min(DEFAULT_LENGTH, spec.max_len), source_length)
    facts = costs(spec, load, dtype.value, tokens)
    if tokens:
        facts["time"] = time_of(spec, load, tokens, gflops, devices)
    if as_json:
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        show(model, spec, facts)


def find_spec(model: str) -> "Spec":
    """The spec behind what a person typed; presets come first, so write ./gpt2 for a folder of that name."""
    from qkv.model.door import from_json
    from qkv.model.presets import PRESETS, preset
    from qkv.text.lines import read_text

    path = Path(model)
    if model in PRESETS or not (path.exists() or path.suffix == ".json" or len(path.parts) > 1):
        return preset(model)
    if path.is_dir():
        from qkv.checkpoint.load import load_spec

        return load_spec(path)
    return from_json(read_text(path), model)


# ── Facts ────────────────────────────────────────────────────────────────────────────────────────────────────────
def costs(spec: "Spec", load: Any, dtype: str, tokens: int | None) -> dict[str, Any]:
    """Everything that is known from the spec alone, ready for JSON."""
    from qkv.plan import cost
    from qkv.plan.formulas import beside_the_notes

    whole, active, flops = (
        cost.parameters(spec),
        cost.active_parameters(spec),
        cost.flops(spec, load),
    )
    return {
        "pass": asdict(load) | {"dtype": dtype},
        "parameters": whole | {"total": sum(whole.values())},
        "active_parameters": active | {"total": sum(active.values())},
        "flops": flops | {"total": sum(flops.values())},
        "training_flops": cost.training_flops(spec, load),
        "bytes": asdict(cost.memory(spec, load, dtype))
        | {"cache_in_windows": _windowed(spec, load, dtype)},
        "formulas": [asdict(one) for one in beside_the_notes(spec, load, dtype, tokens)],
    }


def _windowed(spec: "Spec", load: Any, dtype: str) -> int:
    from qkv.plan import cost

    wide = cost.BYTES["float32" if dtype == "int8" else dtype]
    cross = load.source * cost.cached_cross_numbers(spec)
    return wide * load.batch * (cost.window_numbers(spec, load.target) + cross)


def time_of(
    spec: "Spec", load: Any, tokens: int, gflops: float | None, devices: int
) -> dict[str, Any]:
    """Hours of training: never less than at the full rate; real runs reach a quarter to three quarters of it."""
    from qkv.plan.cost import hours
    from qkv.plan.rate import measured_gflops

    rate = gflops or measured_gflops()
    least = hours(spec, load, tokens, rate * devices)
    return {
        "tokens": tokens,
        "gflops": rate,
        "measured": gflops is None,
        "devices": devices,
        "hours_at_full_rate": least,
        "hours_at_half_rate": 2 * least,
    }


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────
def show(name: str, spec: "Spec", facts: dict[str, Any]) -> None:
    from rich.console import Console

    console, given = Console(highlight=False, soft_wrap=False), facts["pass"]
    sizes = " + ".join(str(given[side]) for side in ("source", "target") if given[side])
    console.print(
        f"{name}: {_family(spec)}, d_model {spec.d_model}, {given['batch']} x {sizes} "
        + _("tokens")
        + f", {given['dtype']}"
    )
    console.print(parts_table(facts))
    console.print(
        _(
            "FLOPs: 2 x multiply-adds of matrix products; masked pairs count, softmax and norms do not."
        )
    )
    console.print(memory_table(facts))
    console.print(formulas_table(facts))
    if "time" in facts:
        console.print(time_table(facts["time"]))
    else:
        console.print(_("Add --tokens N for the hours of a training."))


def parts_table(facts: dict[str, Any]) -> "Table":
    from qkv.plan.pieces import PARTS

    whole, active, flops = facts["parameters"], facts["active_parameters"], facts["flops"]
    sparse = whole != active
    names = [_("part"), _("parameters"), "%", *([_("active")] if sparse else [])]
    table = _table(*names, _("FLOPs forward"), "%")
    for part in (*PARTS, "total"):
        numbers, work = whole.get(part, 0), flops.get(part, 0)
        cells = [_part_name(part), f"{numbers:,}", f"{numbers / whole['total']:.1%}"]
        cells += [f"{active.get(part, 0):,}"] if sparse else []
        if numbers or work:
            table.add_row(
                *cells, short(work), f"{work / flops['total']:.1%}", end_section=part == "head"
            )
    return table


def memory_table(facts: dict[str, Any]) -> "Table":
    table = _table(_("memory"), _("bytes"), "", left=(2,))
    for name, number in facts["bytes"].items():
        words, remark = _memory_words()[name]
        if number and not (name == "cache_in_windows" and number == facts["bytes"]["cache"]):
            table.add_row(words, short(number, "B"), remark)
    return table


def formulas_table(facts: dict[str, Any]) -> "Table":
    names = _("well-known formula"), _("gives"), _("exact"), _("why they differ")
    table = _table(*names, left=(3,))
    for one in facts["formulas"]:
        show_number = "{:.1%}".format if one["exact"] < 1 else short
        reasons = "\n".join(
            f"{_signed(why['difference'], one['exact'] < 1)} {why['words']}" for why in one["why"]
        )
        table.add_row(
            f"{one['what']}\n{one['formula']}",
            show_number(one["by_formula"]),
            show_number(one["exact"]),
            reasons or _("equal"),
            end_section=True,
        )
    return table


def time_table(facts: dict[str, Any]) -> "Table":
    table = _table(_("time"), "", left=(1,))
    measured = _("measured here, float32 product") if facts["measured"] else _("given")
    full, half = (_duration(facts[f"hours_at_{rate}_rate"]) for rate in ("full", "half"))
    table.add_row(_("rate"), f"{facts['devices']} x {facts['gflops']:,.1f} GFLOP/s ({measured})")
    table.add_row(_("at the full rate"), full + _(" (no run is faster)"))
    table.add_row(_("at half of it"), half + _(" (a good run)"))
    return table


def _table(*columns: str, left: tuple[int, ...] = ()) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or index in left else "right")
    return table


# ── Words and numbers ────────────────────────────────────────────────────────────────────────────────────────────
def short(number: float, unit: str = "") -> str:
    """short(124_439_808) == '124.4 M'; short(1_500, "B") == '1.5 kB'."""
    for factor, prefix in (
        (1e21, "Z"),
        (1e18, "E"),
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
    ):
        if abs(number) >= factor:
            return f"{number / factor:.1f} {prefix}{unit}"
    return f"{number:.0f} {unit}".strip()


def _signed(difference: float, is_share: bool) -> str:
    return f"{difference:+.1%}" if is_share else ("+" if difference > 0 else "") + short(difference)


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return _("{hours:.1f} seconds", hours=hours * 3600)
    if hours < 1:
        return _("{hours:.1f} minutes", hours=hours * 60)
    if hours < 72:
        return _("{hours:.1f} hours", hours=hours)
    return _("{hours:,.1f} days", hours=hours / 24)


def _family(spec: "Spec") -> str:
    layers = " + ".join(
        str(len(stack.each_layer())) for stack in (spec.encoder, spec.decoder) if stack
    )
    if spec.encoder and spec.decoder:
        return _("encoder-decoder, {layers} layers", layers=layers)
    if spec.decoder:
        return _("decoder-only, {layers} layers", layers=layers)
    return _("encoder-only, {layers} layers", layers=layers)


def _part_name(part: str) -> str:
    return {
        "embedding": _("embedding"),
        "attention": _("attention"),
        "scores": _("  scores and mixing"),
        "cross": _("cross-attention"),
        "cross_scores": _("  scores and mixing"),
        "feed_forward": _("feed-forward"),
        "norms": _("norms"),
        "head": _("head"),
        "total": _("total"),
    }[part]


def _memory_words() -> dict[str, tuple[str, str]]:
    """The name of each figure, and where it comes from."""
    formula = "2 n_kv_heads d_head l"
    return {
        "weights": (_("weights"), ""),
        "gradients": (_("gradients"), ""),
        "adam": ("Adam", _("two float32 moments")),
        "muon": (_("or Muon"), _("one for the layers' matrices, two for the rest")),
        "activations": (_("activations"), _("estimate of what backward needs")),
        "cache": (_("KV cache"), _("of the whole pass, source side included")),
        "cache_per_token": (
            _("  of a token"),
            _("{formula}, or (kv_rank + d_rope) l", formula=formula),
        ),
        "cache_in_windows": (_("  inside windows"), _("if the rest were forgotten; qkv keeps it")),
    }
