"""DeepSeek V2 and V3: config.json and tensor names.

Multi-head latent attention, dense layers, then shared and routed experts; V3 selects experts by
sigmoid scores with a correction bias. See docs/convert.md, "Families".
"""

from collections.abc import Callable
from typing import Any

from qkv.checkpoint.families.config import Config, huggingface_activation
from qkv.checkpoint.families.llama import (
    COMMON,
    FEED_FORWARD,
    TIED,
    decoder_spec,
    gated,
    uniform_layers,
    write_common,
)
from qkv.checkpoint.families.mixtral import EXPERTS, experts_of
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import Gated, LatentAttention, Layer, MixtureOfExperts, Rotary, Spec

EPS = 1e-6  # of the norms inside latent attention, independent of rms_norm_eps
NAMES = {
    "q_proj": "q_proj",
    "q_a_proj": "q_proj.0",
    "q_a_layernorm": "q_proj.1",
    "q_b_proj": "q_proj.2",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv_up",
    "o_proj": "o_proj",
}
LATENT = [
    Row(
        f"model.layers.{{i}}.self_attn.{foreign}.{{p}}",
        f"decoder.layers.{{i}}.attn.branch.{native}.{{p}}",
    )
    for foreign, native in NAMES.items()
]
SHARED = [
    Row(
        f"model.layers.{{i}}.mlp.shared_experts.{name}.{{p}}",
        f"decoder.layers.{{i}}.ffn.branch.shared.{name}.{{p}}",
    )
    for name in ("gate_proj", "up_proj", "down_proj")
]
BIAS = [
    Row(
        "model.layers.{i}.mlp.gate.e_score_correction_bias",
        "decoder.layers.{i}.ffn.branch.router.score_correction_bias",
    )
]
ROWS = COMMON + LATENT + FEED_FORWARD + EXPERTS + SHARED + BIAS


def read(config: Config, routed: Callable[[Config], MixtureOfExperts], interleaved: bool) -> Spec:
    config.require(attention_bias=False, mlp_bias=False, rms_norm_eps=EPS, moe_layer_freq=1)
    latent = LatentAttention(
        config.positive_int("num_attention_heads"),
        config.positive_int("kv_lora_rank"),
        config.positive_int("qk_nope_head_dim"),
        config.positive_int("qk_rope_head_dim"),
        config.positive_int("v_head_dim"),
        config.positive_int("q_lora_rank") if config.has("q_lora_rank") else None,
    )
    layers, experts = uniform_layers(config, latent, gated(config)), routed(config)
    first = config.fields.get("first_k_dense_replace", 0)
    if type(first) is not int or first < 0:
        raise config.error("first_k_dense_replace", first, "0, 1, 2, ...")
    layers = [
        layer if i < first else Layer(latent, experts, layer.norm) for i, layer in enumerate(layers)
    ]
    return decoder_spec(config, layers, read_rotary(config, interleaved=interleaved))


def experts(config: Config, **options: Any) -> MixtureOfExperts:
    d_ff, activation = (
        config.positive_int("moe_intermediate_size"),
        config.activation("hidden_act", "silu"),
    )
    shared = (
        Gated(d_ff * config.positive_int("n_shared_experts"), activation)
        if config.has("n_shared_experts")
        else None
    )
    return MixtureOfExperts(
        config.positive_int("n_routed_experts"),
        config.positive_int("num_experts_per_tok"),
        Gated(d_ff, activation),
        shared,
        routed_scaling_factor=config.positive_float("routed_scaling_factor", 1.0),
        **options,
    )


def groups(config: Config) -> dict[str, int]:
    return {
        "n_groups": config.positive_int("n_group", 1),
        "n_active_groups": config.positive_int("topk_group", 1),
    }


def routed_v2(config: Config) -> MixtureOfExperts:
    """Softmax scores without normalization; groups only with topk_method group_limited_greedy."""
    config.require(norm_topk_prob=False, scoring_func="softmax")
    method = config.fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", method, "greedy, group_limited_greedy")
    return experts(
        config, norm_topk_prob=False, **(groups(config) if method == "group_limited_greedy" else {})
    )


def routed_v3(config: Config) -> MixtureOfExperts:
    """Sigmoid scores with a correction bias for the selection; selected scores are normalized."""
    config.require(scoring_func="sigmoid", topk_method="noaux_tc")
    return experts(
        config,
        scoring="sigmoid",
        score_correction_bias=True,
        norm_topk_prob=config.flag("norm_topk_prob", True),
        **groups(config),
    )


def read_v2(config: Config) -> Spec:
    return read(config, routed_v2, interleaved=True)


def read_v3(config: Config) -> Spec:
    return read(config, routed_v3, interleaved=config.flag("rope_interleave", True))


def write(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    config, routed = write_common(spec, model_type, name), experts_of(spec)
    layer = spec.decoder.layers[0] if spec.decoder else None
    if (
        config is None
        or routed is None
        or layer is None
        or not isinstance(layer.mixer, LatentAttention)
    ):
        return None
    mixer, dense = (
        layer.mixer,
        layer.feed_forward if isinstance(layer.feed_forward, Gated) else None,
    )
    shared = (
        routed.shared_expert.d_ff // routed.expert.d_ff if routed.shared_expert else 1
    )  # transformers has at least one
    return config | {
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_heads,
        "q_lora_rank": mixer.q_lora_rank,
        "kv_lora_rank": mixer.kv_lora_rank,
        "qk_nope_head_dim": mixer.qk_nope_head_dim,
        "qk_rope_head_dim": mixer.qk_rope_head_dim,
        "v_head_dim": mixer.v_head_dim,
        "intermediate_size": dense.d_ff if dense else routed.expert.d_ff,
        "hidden_act": huggingface_activation(routed.expert.activation),
        "moe_intermediate_size": routed.expert.d_ff,
        "n_routed_experts": routed.n_experts,
        "num_experts_per_tok": routed.n_experts_per_token,
        "n_shared_experts": shared,
        "first_k_dense_replace": layer.repeat if dense else 0,
        "routed_scaling_factor": routed.routed_scaling_factor,
        "norm_topk_prob": routed.norm_topk_prob,
        "n_group": routed.n_groups,
        "topk_group": routed.n_active_groups,
    }


def write_v2(spec: Spec) -> dict[str, Any] | None:
    config, routed = write(spec, "deepseek_v2", "DeepseekV2"), experts_of(spec)
    if config is None or routed is None or routed.scoring != "softmax" or routed.norm_topk_prob:
        return None
    limited = routed.n_active_groups < routed.n_groups
    return config | {"topk_method": "group_limited_greedy" if limited else "greedy"}


def write_v3(spec: Spec) -> dict[str, Any] | None:
    config = write(spec, "deepseek_v3", "DeepseekV3")
    if config is None or not isinstance(spec.positions, Rotary):
        return None
    return config | {"rope_interleave": spec.positions.interleaved, "num_nextn_predict_layers": 0}


def ignored(spec: Spec) -> tuple[str, ...]:
    """Names to ignore: V3's files have a multi-token prediction layer after the last one."""
    n_layers = len(spec.decoder.each_layer()) if spec.decoder else 0
    return (r".*rotary_emb\.inv_freq", rf"model\.layers\.{n_layers}\..*")


DEEPSEEK_V2 = Family("deepseek_v2", lambda spec: ROWS, read_v2, write_v2, "model.", ignored, TIED)
DEEPSEEK_V3 = Family("deepseek_v3", lambda spec: ROWS, read_v3, write_v3, "model.", ignored, TIED)
