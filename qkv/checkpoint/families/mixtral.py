"""Mixtral and Qwen 3 MoE: config.json and tensor names.

Llama with mixture-of-experts layers. A checkpoint has one tensor per expert, the native weights are
stacked. See docs/convert.md, "Families".
"""

from typing import Any

from qkv.checkpoint.families.config import Config, huggingface_activation
from qkv.checkpoint.families.llama import (
    ATTENTION,
    COMMON,
    FEED_FORWARD,
    TIED,
    attention,
    decoder_spec,
    gated,
    ignored,
    uniform_layers,
    write_attention,
    write_common,
)
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row, Stacked
from qkv.model.spec import Attention, Gated, Layer, MixtureOfExperts, Spec

BRANCH = "decoder.layers.{i}.ffn.branch"
MOE = "model.layers.{i}.block_sparse_moe"
MIXTRAL_EXPERTS = [
    Row(f"{MOE}.gate.{{p}}", f"{BRANCH}.router.{{p}}"),
    Stacked(f"{MOE}.experts.{{e}}.w1.weight", f"{BRANCH}.experts.gate_proj"),
    Stacked(f"{MOE}.experts.{{e}}.w3.weight", f"{BRANCH}.experts.up_proj"),
    Stacked(f"{MOE}.experts.{{e}}.w2.weight", f"{BRANCH}.experts.down_proj"),
]
EXPERTS = [Row("model.layers.{i}.mlp.gate.{p}", f"{BRANCH}.router.{{p}}")] + [
    Stacked(f"model.layers.{{i}}.mlp.experts.{{e}}.{name}.weight", f"{BRANCH}.experts.{name}")
    for name in ("gate_proj", "up_proj", "down_proj")
]


def read_mixtral(config: Config) -> Spec:
    window = config.positive_int("sliding_window") if config.has("sliding_window") else None
    experts = MixtureOfExperts(
        config.positive_int("num_local_experts", 8),
        config.positive_int("num_experts_per_tok", 2),
        gated(config),
    )
    return decoder_spec(
        config,
        uniform_layers(config, attention(config, window=window), experts),
        read_rotary(config, 1e6),
    )


def read_qwen3_moe(config: Config) -> Spec:
    config.require(use_sliding_window=False, decoder_sparse_step=1)
    bias = config.flag("attention_bias", False)
    expert = Gated(
        config.positive_int("moe_intermediate_size"), config.activation("hidden_act", "silu")
    )
    n_experts = config.positive_int(
        "num_local_experts" if config.has("num_local_experts") else "num_experts"
    )
    experts = MixtureOfExperts(
        n_experts,
        config.positive_int("num_experts_per_tok", 8),
        expert,
        norm_topk_prob=config.flag("norm_topk_prob", False),
    )
    layers = uniform_layers(
        config, attention(config, qk_norm=True, bias=bias, out_bias=bias), experts
    )
    for index in dense_layers(config, len(layers)):
        layers[index] = Layer(layers[index].mixer, gated(config), layers[index].norm)
    return decoder_spec(config, layers, read_rotary(config))


def dense_layers(config: Config, n_layers: int) -> list[int]:
    """Indices of layers with a dense feed-forward."""
    layers = config.fields.get("mlp_only_layers") or []
    if not isinstance(layers, list) or not all(
        type(i) is int and 0 <= i < n_layers for i in layers
    ):
        raise config.error("mlp_only_layers", layers, f"0 ... {n_layers - 1}")
    return layers


def write_mixtral(spec: Spec) -> dict[str, Any] | None:
    config, experts = write_common(spec, "mixtral", "Mixtral"), experts_of(spec)
    mixer = spec.decoder.layers[0].mixer if spec.decoder else None
    if config is None or experts is None or not isinstance(mixer, Attention):
        return None
    return (
        config
        | write_attention(mixer)
        | {
            "sliding_window": mixer.window,
            "num_local_experts": experts.n_experts,
            "num_experts_per_tok": experts.n_experts_per_token,
            "intermediate_size": experts.expert.d_ff,
            "hidden_act": huggingface_activation(experts.expert.activation),
        }
    )


def write_qwen3_moe(spec: Spec) -> dict[str, Any] | None:
    config, experts = write_common(spec, "qwen3_moe", "Qwen3Moe"), experts_of(spec)
    mixer = spec.decoder.layers[0].mixer if spec.decoder else None
    if (
        config is None
        or spec.decoder is None
        or experts is None
        or not isinstance(mixer, Attention)
    ):
        return None
    dense = [
        i
        for i, layer in enumerate(spec.decoder.each_layer())
        if isinstance(layer.feed_forward, Gated)
    ]
    dense_ffn = spec.decoder.each_layer()[dense[0]].feed_forward if dense else experts.expert
    return (
        config
        | write_attention(mixer)
        | {
            "attention_bias": mixer.bias,
            "num_experts": experts.n_experts,
            "num_local_experts": experts.n_experts,
            "num_experts_per_tok": experts.n_experts_per_token,
            "norm_topk_prob": experts.norm_topk_prob,
            "mlp_only_layers": dense,
            "moe_intermediate_size": experts.expert.d_ff,
            "intermediate_size": getattr(dense_ffn, "d_ff", 1),
            "hidden_act": huggingface_activation(experts.expert.activation),
        }
    )


def experts_of(spec: Spec) -> MixtureOfExperts | None:
    """The experts of the first layer that has any."""
    layers = spec.decoder.layers if spec.decoder else ()
    found = (layer.feed_forward for layer in layers)
    return next((ffn for ffn in found if isinstance(ffn, MixtureOfExperts)), None)


MIXTRAL = Family(
    "mixtral",
    lambda spec: COMMON + ATTENTION + MIXTRAL_EXPERTS,
    read_mixtral,
    write_mixtral,
    "model.",
    ignored,
    TIED,
)
QWEN3_MOE = Family(
    "qwen3_moe",
    lambda spec: COMMON + ATTENTION + FEED_FORWARD + EXPERTS,
    read_qwen3_moe,
    write_qwen3_moe,
    "model.",
    ignored,
    TIED,
)
