"""The tables of `qkv plan`."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from qkv.messages import N_, _
from qkv.model.spec import Spec

PART_NAMES = {
    "embedding": N_("embedding"),
    "attention": N_("attention"),
    "scores": N_("  attention products"),
    "cross": N_("cross-attention"),
    "cross_scores": N_("  attention products"),
    "feed_forward": N_("feed-forward"),
    "norms": N_("norms"),
    "head": N_("head"),
    "total": N_("total"),
}
PREFIXES = {"Z": 1e21, "E": 1e18, "P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def show(name: str, spec: Spec, costs: dict[str, Any]) -> None:
    console, workload = Console(highlight=False, soft_wrap=False), costs["pass"]
    lengths = " + ".join(str(workload[side]) for side in ("source", "target") if workload[side])
    console.print(
        _(
            "{model}: {family}, d_model {d_model}, {batch} x {lengths} tokens, {dtype}",
            model=name,
            family=_family(spec),
            d_model=spec.d_model,
            lengths=lengths,
            **workload,
        )
    )
    console.print(parts_table(costs))
    console.print(
        _(
            "FLOPs: 2 x multiply-adds of matrix products, masked pairs included; softmax and "
            "norms are not counted."
        )
    )
    console.print(memory_table(costs))
    console.print(formulas_table(costs))
    if "time" in costs:
        console.print(time_table(costs["time"]))
    else:
        console.print(_("Add --tokens N to estimate the training time."))


def parts_table(costs: dict[str, Any]) -> Table:
    parameters, active = costs["parameters"], costs["active_parameters"]
    flops, sparse = costs["flops"], parameters != active
    names = [_("part"), _("parameters"), "%", *([_("active")] if sparse else [])]
    table = _table(*names, _("FLOPs forward"), "%")
    for part, name in PART_NAMES.items():
        count, work = parameters.get(part, 0), flops.get(part, 0)
        row = [_(name), f"{count:,}", f"{count / parameters['total']:.1%}"]
        row += [f"{active.get(part, 0):,}"] if sparse else []
        if count or work:
            row += [short(work), f"{work / flops['total']:.1%}"]
            table.add_row(*row, end_section=part == "head")
    return table


def memory_table(costs: dict[str, Any]) -> Table:
    table = _table(_("memory"), _("bytes"), "", left=(2,))
    for name, number in costs["bytes"].items():
        label, remark = _memory_labels()[name]
        if number and not (name == "cache_windowed" and number == costs["bytes"]["cache"]):
            table.add_row(label, short(number, "B"), remark)
    return table


def formulas_table(costs: dict[str, Any]) -> Table:
    names = _("formula"), _("estimate"), _("exact"), _("reasons for the difference")
    table = _table(*names, left=(3,))
    for row in costs["formulas"]:
        is_fraction = row["exact"] < 1
        formatted = "{:.1%}".format if is_fraction else short
        reasons = "\n".join(
            f"{_signed(reason['difference'], is_fraction)} {reason['text']}"
            for reason in row["reasons"]
        )
        table.add_row(
            f"{row['quantity']}\n{row['formula']}",
            formatted(row["estimate"]),
            formatted(row["exact"]),
            reasons or _("equal"),
            end_section=True,
        )
    return table


def time_table(costs: dict[str, Any]) -> Table:
    table = _table(_("time"), "", left=(1,))
    measured = (
        _("measured: float32 matrix product on this CPU") if costs["measured"] else _("given")
    )
    full, half = (_duration(costs[f"hours_at_{rate}_rate"]) for rate in ("full", "half"))
    table.add_row(_("rate"), f"{costs['devices']} x {costs['gflops']:,.1f} GFLOP/s ({measured})")
    table.add_row(_("at the full rate"), _("{duration} (lower bound)", duration=full))
    table.add_row(_("at half the rate"), _("{duration} (typical)", duration=half))
    return table


def _table(*columns: str, left: tuple[int, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or index in left else "right")
    return table


# ── Labels and numbers ────────────────────────────────────────────────────────────────────────
def short(number: float, unit: str = "") -> str:
    """short(124_439_808) == '124.4 M'; short(1_500, "B") == '1.5 kB'."""
    for prefix, factor in PREFIXES.items():
        if abs(number) >= factor:
            return f"{number / factor:.1f} {prefix}{unit}"
    return f"{number:.0f} {unit}".strip()


def _signed(difference: float, is_fraction: bool) -> str:
    return (
        f"{difference:+.1%}" if is_fraction else ("+" if difference > 0 else "") + short(difference)
    )


def _duration(hours: float) -> str:
    if hours < 1 / 60:
        return _("{seconds:.1f} seconds", seconds=hours * 3600)
    if hours < 1:
        return _("{minutes:.1f} minutes", minutes=hours * 60)
    if hours < 72:
        return _("{hours:.1f} hours", hours=hours)
    return _("{days:,.1f} days", days=hours / 24)


def _family(spec: Spec) -> str:
    layers = " + ".join(
        str(len(stack.each_layer())) for stack in (spec.encoder, spec.decoder) if stack
    )
    if spec.encoder and spec.decoder:
        return _("encoder-decoder, {layers} layers", layers=layers)
    if spec.decoder:
        return _("decoder-only, {layers} layers", layers=layers)
    return _("encoder-only, {layers} layers", layers=layers)


def _memory_labels() -> dict[str, tuple[str, str]]:
    """The label of each figure, and a remark."""
    formula = "2 n_kv_heads d_head l"
    return {
        "weights": (_("weights"), ""),
        "gradients": (_("gradients"), ""),
        "adam": ("Adam", _("two float32 moments")),
        "muon": (_("or Muon"), _("one moment for matrices of the layers, two for other weights")),
        "activations": (_("activations"), _("estimate of what autograd saves for backward")),
        "cache": (_("KV cache"), _("of the batch, cross-attention included")),
        "cache_per_token": (
            _("  per token"),
            _("{formula}, or (kv_lora_rank + qk_rope_head_dim) l", formula=formula),
        ),
        "cache_windowed": (_("  inside windows"), _("only this much is attended to")),
    }
