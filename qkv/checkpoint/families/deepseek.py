"""DeepSeek V2 and V3: config.json and tensor names.

Multi-head latent attention, dense layers, then shared and routed experts; V3 selects experts by
sigmoid scores with a correction bias. See docs/guides/import-export.md, "Families".
"""

from dataclasses import replace
from typing import Any

from qkv.checkpoint.families import llama
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.mixtral import BRANCH, EXPERTS, MLP
from qkv.checkpoint.names import Family, Fields, NotExpressible, Row
from qkv.model.spec import Gated, LatentAttention, MixtureOfExperts, Rotary, Spec

EPS = 1e-6  # of the norms inside latent attention, independent of rms_norm_eps
# Fields of LatentAttention with the same name in config.json.
LATENT_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
LAYER = llama.LAYER | {
    "self_attn.q_a_proj": "attn.branch.q_proj.0",
    "self_attn.q_a_layernorm": "attn.branch.q_proj.1",
    "self_attn.q_b_proj": "attn.branch.q_proj.2",
    "self_attn.kv_a_proj_with_mqa": "attn.branch.kv_down",
    "self_attn.kv_a_layernorm": "attn.branch.kv_norm",
    "self_attn.kv_b_proj": "attn.branch.kv_up",
    "mlp.shared_experts.gate_proj": "ffn.branch.shared.gate_proj",
    "mlp.shared_experts.up_proj": "ffn.branch.shared.up_proj",
    "mlp.shared_experts.down_proj": "ffn.branch.shared.down_proj",
}
BIAS = Row(f"{MLP}.gate.e_score_correction_bias", f"{BRANCH}.router.score_correction_bias")
# V3's files have a multi-token prediction layer after the last one.
IGNORED = (*llama.IGNORED, r"model\.layers\.{n_layers}\..*")


def rows(spec: Spec) -> list[Row]:
    return [*llama.rows(spec, LAYER), *EXPERTS, BIAS]


def read(config: Config, experts: MixtureOfExperts, interleaved: bool) -> Spec:
    config.require(attention_bias=False, mlp_bias=False, rms_norm_eps=EPS, moe_layer_freq=1)
    n_heads = config.positive_int("num_attention_heads")
    sizes: Fields = {name: config.positive_int(name) for name in LATENT_SIZES}
    latent = LatentAttention(n_heads, **sizes, q_lora_rank=config.optional_int("q_lora_rank"))
    layers = llama.uniform_layers(config, latent, llama.gated(config))
    first = config.fields.get("first_k_dense_replace", 0)
    if type(first) is not int or first < 0:
        raise config.error("first_k_dense_replace", first, "0, 1, 2, ...")
    layers[first:] = [replace(layer, feed_forward=experts) for layer in layers[first:]]
    return llama.decoder_spec(config, layers, interleaved=interleaved)


def read_experts(config: Config, **options: Any) -> MixtureOfExperts:
    expert = llama.gated(config, "moe_intermediate_size")
    n_shared = config.optional_int("n_shared_experts")
    return MixtureOfExperts(
        config.positive_int("n_routed_experts"),
        config.positive_int("num_experts_per_tok"),
        expert,
        replace(expert, d_ff=expert.d_ff * n_shared) if n_shared else None,
        routed_scaling_factor=config.positive_float("routed_scaling_factor", 1.0),
        **options,
    )


def groups(config: Config) -> dict[str, int]:
    return {
        "n_groups": config.positive_int("n_group", 1),
        "n_active_groups": config.positive_int("topk_group", 1),
    }


def read_v2(config: Config) -> Spec:
    """Softmax scores without normalization; groups only with topk_method group_limited_greedy."""
    config.require(norm_topk_prob=False, scoring_func="softmax")
    method = config.fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.error("topk_method", method, "greedy, group_limited_greedy")
    options = {} if method == "greedy" else groups(config)
    return read(config, read_experts(config, norm_topk_prob=False, **options), interleaved=True)


def read_v3(config: Config) -> Spec:
    """Sigmoid scores with a correction bias for the selection; selected scores are normalized."""
    config.require(scoring_func="sigmoid", topk_method="noaux_tc")
    experts = read_experts(
        config,
        scoring="sigmoid",
        score_correction_bias=True,
        norm_topk_prob=config.flag("norm_topk_prob", True),
        **groups(config),
    )
    return read(config, experts, interleaved=config.flag("rope_interleave", True))


def write(spec: Spec) -> tuple[Fields, MixtureOfExperts]:
    """The fields common to both versions, and the experts."""
    config, layers, mixer, experts = llama.write_common(spec, LatentAttention, MixtureOfExperts)
    expert, shared, dense = experts.expert, experts.shared_expert, layers[0].feed_forward
    return config | {
        "num_key_value_heads": mixer.n_heads,
        "q_lora_rank": mixer.q_lora_rank,
        **{name: getattr(mixer, name) for name in LATENT_SIZES},
        "intermediate_size": dense.d_ff if isinstance(dense, Gated) else expert.d_ff,
        "moe_intermediate_size": expert.d_ff,
        "n_routed_experts": experts.n_experts,
        "num_experts_per_tok": experts.n_experts_per_token,
        # transformers has at least one
        "n_shared_experts": shared.d_ff // expert.d_ff if shared else 1,
        "first_k_dense_replace": layers[0].repeat if isinstance(dense, Gated) else 0,
        "routed_scaling_factor": experts.routed_scaling_factor,
        "norm_topk_prob": experts.norm_topk_prob,
        "n_group": experts.n_groups,
        "topk_group": experts.n_active_groups,
    }, experts


def write_v2(spec: Spec) -> Fields:
    config, experts = write(spec)
    if experts.scoring != "softmax" or experts.norm_topk_prob:
        raise NotExpressible
    limited = experts.n_active_groups < experts.n_groups
    return config | {"topk_method": "group_limited_greedy" if limited else "greedy"}


def write_v3(spec: Spec) -> Fields:
    config, _experts = write(spec)
    assert isinstance(spec.positions, Rotary)
    return config | {"rope_interleave": spec.positions.interleaved, "num_nextn_predict_layers": 0}


DEEPSEEK_V2 = Family("DeepseekV2", rows, read_v2, write_v2, IGNORED, llama.TIED)
DEEPSEEK_V3 = Family("DeepseekV3", rows, read_v3, write_v3, IGNORED, llama.TIED)
