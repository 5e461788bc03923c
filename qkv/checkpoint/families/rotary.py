"""Rotary positions as config.json tells them: rope_theta and rope_scaling, or today's rope_parameters.

In: a config. Out: our Rotary, and back. Told in docs/convert.md, "config.json".
"""

import math
from typing import Any

from qkv.checkpoint.families.config import Config
from qkv.messages import _
from qkv.model.spec import LinearScaling, LlamaScaling, Rotary, YarnScaling


def read_rotary(config: Config, base: float = 10_000.0, adjacent: bool = False) -> Rotary:
    """The base and the scaling for long contexts."""
    rope = (
        config.table("rope_parameters") or config.table("rope_scaling") or Config(config.where, {})
    )
    outer = config if config.has("rope_theta") and not rope.has("rope_theta") else rope
    for one in (config, rope):
        one.only(partial_rotary_factor=1.0)
    return Rotary(
        outer.number("rope_theta", base),
        1.0,
        "adjacent" if adjacent else "halves",
        read_scaling(rope, config),
    )


def read_scaling(rope: Config, config: Config) -> LinearScaling | LlamaScaling | YarnScaling | None:
    kind = rope.fields.get("rope_type", rope.fields.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(rope.number("factor"))
        case "llama3":
            return LlamaScaling(
                rope.number("factor"),
                rope.number("low_freq_factor"),
                rope.number("high_freq_factor"),
                first_len(rope, config),
            )
        case "yarn":
            return read_yarn(rope, config)
    raise rope.wrong("rope_type", kind, _("we know default, linear, llama3, yarn"))


def read_yarn(rope: Config, config: Config) -> YarnScaling:
    """cos and sin times `sharpness`; DeepSeek also multiplies the scores, by its mscale_all_dim squared."""
    rope.only(truncate=True)
    factor = rope.number("factor")
    m, m_all = (rope.fields.get(name) for name in ("mscale", "mscale_all_dim"))
    sharp = (
        growth(factor, rope.number("mscale")) / growth(factor, rope.number("mscale_all_dim"))
        if m and m_all
        else (growth(factor))
    )
    return YarnScaling(
        factor,
        first_len(rope, config),
        rope.number("beta_fast", 32.0),
        rope.number("beta_slow", 1.0),
        rope.number("attention_factor", sharp),
        growth(factor, rope.number("mscale_all_dim")) ** 2 if m_all else 1.0,
    )


def first_len(rope: Config, config: Config) -> int:
    """How long the contexts of the first training were."""
    name = "original_max_position_embeddings"
    return (
        rope.whole(name)
        if rope.has(name)
        else config.whole(name, config.whole("max_position_embeddings"))
    )


def growth(factor: float, m: float = 1.0) -> float:
    """YaRN's 0.1 m ln(factor) + 1."""
    return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """rope_parameters as transformers 5 reads them, and rope_theta for older readers."""
    rope: dict[str, Any] = {"rope_theta": rotary.base, "rope_type": "default"}
    match rotary.scaling:
        case LinearScaling(factor=factor):
            rope |= {"rope_type": "linear", "factor": factor}
        case LlamaScaling() as one:
            rope |= {
                "rope_type": "llama3",
                "factor": one.factor,
                "low_freq_factor": one.low_factor,
                "high_freq_factor": one.high_factor,
                "original_max_position_embeddings": one.first_len,
            }
        case YarnScaling() as one:
            rope |= write_yarn(one)
    return {"rope_theta": rotary.base, "rope_parameters": rope}


def write_yarn(yarn: YarnScaling) -> dict[str, Any]:
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.first_len,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "attention_factor": yarn.sharpness,
    }
    if yarn.score_sharpness != 1.0 and yarn.factor > 1:
        rope["mscale_all_dim"] = (math.sqrt(yarn.score_sharpness) - 1) / (
            0.1 * math.log(yarn.factor)
        )
    return rope
