"""Rotary position embedding in config.json: rope_parameters, or rope_theta and rope_scaling.

See docs/guides/import-export.md, "config.json".
"""

import math
from dataclasses import asdict

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.names import Fields
from qkv.messages import _
from qkv.model.spec import LinearScaling, LlamaScaling, Rotary, Scaling, YarnScaling

# A scaling's fields in config.json, where the names differ
NAMES = {"kind": "rope_type", "original_max_len": "original_max_position_embeddings"}


def read_rotary(config: Config, theta: float = 10_000.0, interleaved: bool = False) -> Rotary:
    """Theta and the scaling for long contexts."""
    rope = (
        config.table("rope_parameters") or config.table("rope_scaling") or Config(config.where, {})
    )
    outer = config if config.has("rope_theta") and not rope.has("rope_theta") else rope
    for table in (config, rope):
        table.require(partial_rotary_factor=1.0)
    return Rotary(
        outer.positive_float("rope_theta", theta),
        interleaved=interleaved,
        scaling=read_scaling(rope, config),
    )


def read_scaling(rope: Config, config: Config) -> Scaling | None:
    kind = rope.fields.get("rope_type", rope.fields.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.positive_float("factor"))
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor")
            factor, low, high = map(rope.positive_float, names)
            return LlamaScaling(factor, low, high, original_max_len(rope, config))
        case "yarn":
            return read_yarn(rope, config)
    raise rope.error(
        "rope_type", kind, _("use one of {names}", names="default, linear, llama3, yarn")
    )


def read_yarn(rope: Config, config: Config) -> YarnScaling:
    """YaRN: cos and sin times attention_factor; DeepSeek also scales the scores by mscale."""
    rope.require(truncate=True)
    factor, mscale = rope.positive_float("factor"), 1.0
    attention_factor = yarn_mscale(factor)
    if rope.fields.get("mscale_all_dim"):
        all_dim = yarn_mscale(factor, rope.positive_float("mscale_all_dim"))
        mscale = all_dim**2
        if rope.fields.get("mscale"):
            attention_factor = yarn_mscale(factor, rope.positive_float("mscale")) / all_dim
    return YarnScaling(
        factor,
        original_max_len(rope, config),
        rope.positive_float("beta_fast", 32.0),
        rope.positive_float("beta_slow", 1.0),
        rope.positive_float("attention_factor", attention_factor),
        mscale,
    )


def original_max_len(rope: Config, config: Config) -> int:
    """The context length before it was extended."""
    name = "original_max_position_embeddings"
    return (
        rope.positive_int(name)
        if rope.has(name)
        else config.positive_int(name, config.positive_int("max_position_embeddings"))
    )


def yarn_mscale(factor: float, m: float = 1.0) -> float:
    """0.1 m ln(factor) + 1, as in YaRN."""
    return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rotary(rotary: Rotary) -> Fields:
    """rope_parameters as in transformers 5, and rope_theta for older versions."""
    rope: Fields = {"rope_theta": rotary.theta, "rope_type": "default"}
    if rotary.scaling is not None:
        fields = asdict(rotary.scaling)
        mscale, factor = fields.pop("mscale", 1.0), rotary.scaling.factor
        rope |= {NAMES.get(name, name): value for name, value in fields.items()}
        if mscale != 1.0 and factor > 1:
            rope["mscale_all_dim"] = (math.sqrt(mscale) - 1) / (0.1 * math.log(factor))
    return {"rope_theta": rotary.theta, "rope_parameters": rope}
