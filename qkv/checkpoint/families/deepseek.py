"""DeepSeek V2 and V3: latent attention, a few dense layers, then shared and routed experts.

In: their config.json. Out: our spec, and back. V3 chooses experts by sigmoid scores with a balancing bias.
Told in docs/convert.md, "Families".
"""

from collections.abc import Callable
from typing import Any

from qkv.checkpoint.families.config import Config, their_activation
from qkv.checkpoint.families.llama import (
    COPIES,
    FEED_FORWARD,
    FRAME,
    alike,
    frame,
    gated,
    write_frame,
)
from qkv.checkpoint.families.mixtral import EXPERTS, experts_of
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import Experts, Gated, Latent, Layer, Rotary, Spec

EPS = 1e-6  # of the norms inside latent attention, whatever the config says of the others
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
        f"model.layers.{{i}}.self_attn.{theirs}.{{p}}",
        f"decoder.layers.{{i}}.attn.branch.{ours}.{{p}}",
    )
    for theirs, ours in NAMES.items()
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
        "decoder.layers.{i}.ffn.branch.router.balance_bias",
    )
]
ROWS = FRAME + LATENT + FEED_FORWARD + EXPERTS + SHARED + BIAS


def read(config: Config, routed: Callable[[Config], Experts], adjacent: bool) -> Spec:
    config.only(attention_bias=False, mlp_bias=False, rms_norm_eps=EPS, moe_layer_freq=1)
    latent = Latent(
        config.whole("num_attention_heads"),
        config.whole("kv_lora_rank"),
        config.whole("qk_nope_head_dim"),
        config.whole("qk_rope_head_dim"),
        config.whole("v_head_dim"),
        config.whole("q_lora_rank") if config.has("q_lora_rank") else None,
    )
    layers, experts = alike(config, latent, gated(config)), routed(config)
    first = config.fields.get("first_k_dense_replace", 0)
    if type(first) is not int or first < 0:
        raise config.wrong("first_k_dense_replace", first, "0, 1, 2, ...")
    layers = [
        layer if i < first else Layer(latent, experts, layer.norm) for i, layer in enumerate(layers)
    ]
    return frame(config, layers, read_rotary(config, adjacent=adjacent))


def experts(config: Config, **more: Any) -> Experts:
    width, shape = config.whole("moe_intermediate_size"), config.activation("hidden_act", "silu")
    shared = (
        Gated(width * config.whole("n_shared_experts"), shape)
        if config.has("n_shared_experts")
        else None
    )
    return Experts(
        config.whole("n_routed_experts"),
        config.whole("num_experts_per_tok"),
        Gated(width, shape),
        shared,
        scale=config.number("routed_scaling_factor", 1.0),
        **more,
    )


def groups(config: Config) -> dict[str, int]:
    return {
        "n_groups": config.whole("n_group", 1),
        "n_active_groups": config.whole("topk_group", 1),
    }


def routed_v2(config: Config) -> Experts:
    """Softmax scores, used as they are; groups only where topk_method says so."""
    config.only(norm_topk_prob=False, scoring_func="softmax")
    method = config.fields.get("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise config.wrong("topk_method", method, "greedy, group_limited_greedy")
    return experts(
        config, normalised=False, **(groups(config) if method == "group_limited_greedy" else {})
    )


def routed_v3(config: Config) -> Experts:
    """Sigmoid scores; a bias helps to choose, and the chosen ones are normalised."""
    config.only(scoring_func="sigmoid", topk_method="noaux_tc")
    return experts(
        config,
        scoring="sigmoid",
        balance_bias=True,
        normalised=config.flag("norm_topk_prob", True),
        **groups(config),
    )


def read_v2(config: Config) -> Spec:
    return read(config, routed_v2, adjacent=True)


def read_v3(config: Config) -> Spec:
    return read(config, routed_v3, adjacent=config.flag("rope_interleave", True))


def write(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    config, routed = write_frame(spec, model_type, name), experts_of(spec)
    layer = spec.decoder.layers[0] if spec.decoder else None
    if config is None or routed is None or layer is None or not isinstance(layer.mixer, Latent):
        return None
    mixer, dense = (
        layer.mixer,
        layer.feed_forward if isinstance(layer.feed_forward, Gated) else None,
    )
    shared = (
        routed.shared.d_ff // routed.each.d_ff if routed.shared else 1
    )  # transformers has at least one
    return config | {
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_heads,
        "q_lora_rank": mixer.q_rank,
        "kv_lora_rank": mixer.kv_rank,
        "qk_nope_head_dim": mixer.d_nope,
        "qk_rope_head_dim": mixer.d_rope,
        "v_head_dim": mixer.d_value,
        "intermediate_size": dense.d_ff if dense else routed.each.d_ff,
        "hidden_act": their_activation(routed.each.activation),
        "moe_intermediate_size": routed.each.d_ff,
        "n_routed_experts": routed.n_experts,
        "num_experts_per_tok": routed.n_active,
        "n_shared_experts": shared,
        "first_k_dense_replace": layer.repeat if dense else 0,
        "routed_scaling_factor": routed.scale,
        "norm_topk_prob": routed.normalised,
        "n_group": routed.n_groups,
        "topk_group": routed.n_active_groups,
    }


def write_v2(spec: Spec) -> dict[str, Any] | None:
    config, routed = write(spec, "deepseek_v2", "DeepseekV2"), experts_of(spec)
    if config is None or routed is None or routed.scoring != "softmax" or routed.normalised:
        return None
    limited = routed.n_active_groups < routed.n_groups
    return config | {"topk_method": "group_limited_greedy" if limited else "greedy"}


def write_v3(spec: Spec) -> dict[str, Any] | None:
    config = write(spec, "deepseek_v3", "DeepseekV3")
    if config is None or not isinstance(spec.positions, Rotary):
        return None
    return config | {
        "rope_interleave": spec.positions.pairs == "adjacent",
        "num_nextn_predict_layers": 0,
    }


def spare(spec: Spec) -> tuple[str, ...]:
    """V3's files go on after the last layer with one that guesses a token further ahead; it is no part of ours."""
    n_layers = len(spec.decoder.each_layer()) if spec.decoder else 0
    return (r".*rotary_emb\.inv_freq", rf"model\.layers\.{n_layers}\..*")


DEEPSEEK_V2 = Family("deepseek_v2", lambda spec: ROWS, read_v2, write_v2, "model.", spare, COPIES)
DEEPSEEK_V3 = Family("deepseek_v3", lambda spec: ROWS, read_v3, write_v3, "model.", spare, COPIES)
