"""Mixtral and Qwen 3 MoE: Llama's frame with experts in the feed-forward's place.

In: their config.json. Out: our spec, and back. On the disk each expert is a file entry of its own; we stack them.
Told in docs/convert.md, "Families".
"""

from typing import Any

from qkv.checkpoint.families.config import Config, their_activation
from qkv.checkpoint.families.llama import (
    ATTENTION,
    COPIES,
    FEED_FORWARD,
    FRAME,
    alike,
    frame,
    gated,
    heads,
    spare,
    write_frame,
    write_heads,
)
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row, Stacked
from qkv.model.spec import Experts, Gated, Heads, Layer, Spec

BRANCH = "decoder.layers.{i}.ffn.branch"
THEIRS = "model.layers.{i}.block_sparse_moe"
MIXTRAL_EXPERTS = [
    Row(f"{THEIRS}.gate.{{p}}", f"{BRANCH}.router.{{p}}"),
    Stacked(f"{THEIRS}.experts.{{e}}.w1.weight", f"{BRANCH}.experts.gate_proj"),
    Stacked(f"{THEIRS}.experts.{{e}}.w3.weight", f"{BRANCH}.experts.up_proj"),
    Stacked(f"{THEIRS}.experts.{{e}}.w2.weight", f"{BRANCH}.experts.down_proj"),
]
EXPERTS = [Row("model.layers.{i}.mlp.gate.{p}", f"{BRANCH}.router.{{p}}")] + [
    Stacked(f"model.layers.{{i}}.mlp.experts.{{e}}.{name}.weight", f"{BRANCH}.experts.{name}")
    for name in ("gate_proj", "up_proj", "down_proj")
]


def read_mixtral(config: Config) -> Spec:
    window = config.whole("sliding_window") if config.has("sliding_window") else None
    experts = Experts(
        config.whole("num_local_experts", 8), config.whole("num_experts_per_tok", 2), gated(config)
    )
    return frame(
        config, alike(config, heads(config, window=window), experts), read_rotary(config, 1e6)
    )


def read_qwen3_moe(config: Config) -> Spec:
    config.only(use_sliding_window=False, decoder_sparse_step=1)
    bias = config.flag("attention_bias", False)
    each = Gated(config.whole("moe_intermediate_size"), config.activation("hidden_act", "silu"))
    n_experts = config.whole(
        "num_local_experts" if config.has("num_local_experts") else "num_experts"
    )
    experts = Experts(
        n_experts,
        config.whole("num_experts_per_tok", 8),
        each,
        normalised=config.flag("norm_topk_prob", False),
    )
    layers = alike(config, heads(config, qk_norm=True, bias=bias, out_bias=bias), experts)
    for index in dense_layers(config, len(layers)):
        layers[index] = Layer(layers[index].mixer, gated(config), layers[index].norm)
    return frame(config, layers, read_rotary(config))


def dense_layers(config: Config, n_layers: int) -> list[int]:
    """Layers that keep a plain feed-forward."""
    listed = config.fields.get("mlp_only_layers") or []
    if not isinstance(listed, list) or not all(
        type(i) is int and 0 <= i < n_layers for i in listed
    ):
        raise config.wrong("mlp_only_layers", listed, f"0 ... {n_layers - 1}")
    return listed


def write_mixtral(spec: Spec) -> dict[str, Any] | None:
    config, experts = write_frame(spec, "mixtral", "Mixtral"), experts_of(spec)
    mixer = spec.decoder.layers[0].mixer if spec.decoder else None
    if config is None or experts is None or not isinstance(mixer, Heads):
        return None
    return (
        config
        | write_heads(mixer)
        | {
            "sliding_window": mixer.window,
            "num_local_experts": experts.n_experts,
            "num_experts_per_tok": experts.n_active,
            "intermediate_size": experts.each.d_ff,
            "hidden_act": their_activation(experts.each.activation),
        }
    )


def write_qwen3_moe(spec: Spec) -> dict[str, Any] | None:
    config, experts = write_frame(spec, "qwen3_moe", "Qwen3Moe"), experts_of(spec)
    mixer = spec.decoder.layers[0].mixer if spec.decoder else None
    if config is None or spec.decoder is None or experts is None or not isinstance(mixer, Heads):
        return None
    dense = [
        i
        for i, layer in enumerate(spec.decoder.each_layer())
        if isinstance(layer.feed_forward, Gated)
    ]
    plain = spec.decoder.each_layer()[dense[0]].feed_forward if dense else experts.each
    return (
        config
        | write_heads(mixer)
        | {
            "attention_bias": mixer.bias,
            "num_experts": experts.n_experts,
            "num_local_experts": experts.n_experts,
            "num_experts_per_tok": experts.n_active,
            "norm_topk_prob": experts.normalised,
            "mlp_only_layers": dense,
            "moe_intermediate_size": experts.each.d_ff,
            "intermediate_size": getattr(plain, "d_ff", 1),
            "hidden_act": their_activation(experts.each.activation),
        }
    )


def experts_of(spec: Spec) -> Experts | None:
    """The experts of the first layer that has any."""
    parts = [layer.feed_forward for layer in spec.decoder.layers] if spec.decoder else []
    return next((part for part in parts if isinstance(part, Experts)), None)


MIXTRAL = Family(
    "mixtral",
    lambda spec: FRAME + ATTENTION + MIXTRAL_EXPERTS,
    read_mixtral,
    write_mixtral,
    "model.",
    spare,
    COPIES,
)
QWEN3_MOE = Family(
    "qwen3_moe",
    lambda spec: FRAME + ATTENTION + FEED_FORWARD + EXPERTS,
    read_qwen3_moe,
    write_qwen3_moe,
    "model.",
    spare,
    COPIES,
)
