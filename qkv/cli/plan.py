"""`qkv plan`: parameters, FLOPs, memory and training time of a model, from its spec.

The model is not built. See docs/explanation/cost.md.
"""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.options import SEQ_LEN_LIMIT, Batch, Json, Model
from qkv.cli.output import print_json
from qkv.cli.parameters import option
from qkv.dtypes import canonical_dtype
from qkv.limits import NumberRange

if TYPE_CHECKING:
    from qkv.model.spec import Spec

DEFAULT_SEQ_LEN = 512


Dtype = StrEnum("Dtype", ["float32", "fp32", "bfloat16", "bf16", "int8"])


def plan(
    model: Model,
    batch: Batch = 1,
    seq_len: int = option(None, "tokens per sequence; default 512", limit=SEQ_LEN_LIMIT),
    source_len: int = option(
        None, "tokens per source sequence; default: as --seq-len", limit=SEQ_LEN_LIMIT
    ),
    dtype: Dtype = option("float32", "data type of the weights"),
    tokens: int = option(
        None,
        "training tokens, source and target together; adds an estimate of the time",
        limit=NumberRange(1, 10**18),
    ),
    gflops: float = option(
        None, "GFLOP/s of one device; default: measured on this CPU", limit=NumberRange(1e-9, 1e12)
    ),
    devices: int = option(1, "number of devices", limit=NumberRange(1, 10**6)),
    as_json: Json = False,
) -> None:
    """Estimate the cost of a model: parameters, FLOPs, memory, training time."""
    from qkv.plan.cost import make_workload

    spec = find_spec(model)
    workload = make_workload(spec, batch, seq_len or min(DEFAULT_SEQ_LEN, spec.max_len), source_len)
    figures = costs(spec, workload, canonical_dtype(dtype.value), tokens)
    if tokens:
        figures["time"] = time_of(spec, workload, tokens, gflops, devices)
    if as_json:
        print_json(figures, indent=2)
    else:
        from qkv.cli.plan_tables import show

        show(model, spec, figures)


def find_spec(model: str) -> "Spec":
    """The spec of a preset, a file or a folder; write ./gpt2 for a folder named like a preset."""
    from qkv.model.presets import PRESETS, preset
    from qkv.model.spec_io import from_json
    from qkv.text.lines import read_text

    path = Path(model)
    if model in PRESETS or not (path.exists() or path.suffix == ".json" or len(path.parts) > 1):
        return preset(model)
    if path.is_dir():
        from qkv.checkpoint.load import load_spec

        return load_spec(path)
    return from_json(read_text(path), model)


# ── Costs ─────────────────────────────────────────────────────────────────────────────────────
def costs(spec: "Spec", workload: Any, dtype: str, tokens: int | None) -> dict[str, Any]:
    """All figures that follow from the spec, for JSON."""
    from qkv.plan import cost
    from qkv.plan.formulas import compare_formulas

    return {
        "pass": asdict(workload) | {"dtype": dtype},
        "parameters": _with_total(cost.parameters(spec)),
        "active_parameters": _with_total(cost.active_parameters(spec)),
        "flops": _with_total(cost.flops(spec, workload)),
        "training_flops": cost.training_flops(spec, workload),
        "bytes": asdict(cost.memory(spec, workload, dtype))
        | {"cache_windowed": _windowed_cache(spec, workload, dtype)},
        "formulas": list(map(asdict, compare_formulas(spec, workload, dtype, tokens))),
    }


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return parts | {"total": sum(parts.values())}


def _windowed_cache(spec: "Spec", workload: Any, dtype: str) -> int:
    from qkv.plan import cost

    dtype_bytes = cost.DTYPE_BYTES["float32" if dtype == "int8" else dtype]
    cross = workload.source * cost.cached_cross_values(spec)
    return (
        dtype_bytes * workload.batch * (cost.windowed_cache_values(spec, workload.target) + cross)
    )


def time_of(
    spec: "Spec", workload: Any, tokens: int, gflops: float | None, devices: int
) -> dict[str, Any]:
    """Hours of training at the full rate, a lower bound; runs reach 25 to 75 % of the rate."""
    from qkv.plan.cost import hours
    from qkv.plan.rate import measured_gflops

    rate = gflops or measured_gflops()
    minimum = hours(spec, workload, tokens, rate * devices)
    return {
        "tokens": tokens,
        "gflops": rate,
        "measured": gflops is None,
        "devices": devices,
        "hours_at_full_rate": minimum,
        "hours_at_half_rate": 2 * minimum,
    }
