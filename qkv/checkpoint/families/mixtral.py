"""Mixtral and Qwen 3 MoE: config.json and tensor names.

Llama with mixture-of-experts layers. A checkpoint has one tensor per expert, the native weights are
stacked. See docs/guides/import-export.md, "Families".
"""

from dataclasses import replace

from qkv.checkpoint.families import llama
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.names import Fields, Row, Stacked
from qkv.model.spec import Attention, Gated, MixtureOfExperts, Spec

BRANCH = "decoder.layers.{i}.ffn.branch"
MOE = "model.layers.{i}.block_sparse_moe"
MLP = "model.layers.{i}.mlp"
MIXTRAL_EXPERTS = [
    Row(f"{MOE}.gate.{{p}}", f"{BRANCH}.router.{{p}}"),
    Stacked(f"{MOE}.experts.{{e}}.w1.weight", f"{BRANCH}.experts.gate_proj"),
    Stacked(f"{MOE}.experts.{{e}}.w3.weight", f"{BRANCH}.experts.up_proj"),
    Stacked(f"{MOE}.experts.{{e}}.w2.weight", f"{BRANCH}.experts.down_proj"),
]
EXPERTS = [
    Row(f"{MLP}.gate.{{p}}", f"{BRANCH}.router.{{p}}"),
    Stacked(f"{MLP}.experts.{{e}}.gate_proj.weight", f"{BRANCH}.experts.gate_proj"),
    Stacked(f"{MLP}.experts.{{e}}.up_proj.weight", f"{BRANCH}.experts.up_proj"),
    Stacked(f"{MLP}.experts.{{e}}.down_proj.weight", f"{BRANCH}.experts.down_proj"),
]


def read_mixtral(config: Config) -> Spec:
    mixer = llama.windowed(config)
    experts = MixtureOfExperts(
        config.positive_int("num_local_experts", 8),
        config.positive_int("num_experts_per_tok", 2),
        llama.gated(config),
    )
    return llama.decoder_spec(config, llama.uniform_layers(config, mixer, experts), theta=1e6)


def read_qwen3_moe(config: Config) -> Spec:
    config.require(use_sliding_window=False, decoder_sparse_step=1)
    expert = llama.gated(config, "moe_intermediate_size")
    experts = MixtureOfExperts(
        config.optional_int("num_local_experts") or config.positive_int("num_experts"),
        config.positive_int("num_experts_per_tok", 8),
        expert,
        norm_topk_prob=config.flag("norm_topk_prob", False),
    )
    layers = llama.uniform_layers(config, llama.biased_if_set(config, qk_norm=True), experts)
    for index in dense_layers(config, len(layers)):
        layers[index] = replace(layers[index], feed_forward=llama.gated(config))
    return llama.decoder_spec(config, layers)


def dense_layers(config: Config, n_layers: int) -> list[int]:
    """Indices of layers with a dense feed-forward."""
    layers = config.fields.get("mlp_only_layers") or []
    if not isinstance(layers, list) or not all(
        type(i) is int and 0 <= i < n_layers for i in layers
    ):
        raise config.error("mlp_only_layers", layers, f"0 ... {n_layers - 1}")
    return layers


def write_experts(mixer: Attention, experts: MixtureOfExperts) -> Fields:
    return llama.write_attention(mixer) | {
        "num_local_experts": experts.n_experts,
        "num_experts_per_tok": experts.n_experts_per_token,
    }


def write_mixtral(spec: Spec) -> Fields:
    config, _layers, mixer, experts = llama.write_common(spec, Attention, MixtureOfExperts)
    return config | write_experts(mixer, experts) | {"sliding_window": mixer.window}


def write_qwen3_moe(spec: Spec) -> Fields:
    config, layers, mixer, experts = llama.write_common(spec, Attention, MixtureOfExperts)
    dense = {
        index: layer.feed_forward.d_ff
        for index, layer in enumerate(layers)
        if isinstance(layer.feed_forward, Gated)
    }
    return (
        config
        | write_experts(mixer, experts)
        | {
            "attention_bias": mixer.bias,
            "num_experts": experts.n_experts,
            "norm_topk_prob": experts.norm_topk_prob,
            "mlp_only_layers": [*dense],
            "moe_intermediate_size": experts.expert.d_ff,
            "intermediate_size": next(iter(dense.values()), experts.expert.d_ff),
        }
    )


MIXTRAL = llama.decoder_family(
    "Mixtral", lambda spec: llama.rows(spec) + MIXTRAL_EXPERTS, read_mixtral, write_mixtral
)
QWEN3_MOE = llama.decoder_family(
    "Qwen3Moe", lambda spec: llama.rows(spec) + EXPERTS, read_qwen3_moe, write_qwen3_moe
)
