"""Llama 2 and 3, Mistral, Qwen 2, 2.5 and 3: config.json and tensor names.

Other decoder families use the same tensor names. See docs/convert.md, "Families".
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from qkv.checkpoint.families.config import Config, group_layers, huggingface_activation
from qkv.checkpoint.families.rotary import read_rotary, write_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import (
    Attention,
    FeedForward,
    Gated,
    Layer,
    LmHead,
    Mixer,
    Norm,
    Rotary,
    Spec,
    Stack,
)

KINDS = ("sliding_attention", "full_attention")
TIED = {"lm_head.weight": ("model.embed_tokens.weight",)}

COMMON = [
    Row("model.embed_tokens.{p}", "embed.{p}"),
    Row("model.layers.{i}.input_layernorm.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    Row("model.layers.{i}.post_attention_layernorm.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Row("model.norm.{p}", "decoder.norm.{p}"),
    Row("lm_head.{p}", "lm_head.{p}"),
]
ATTENTION = [
    Row(
        f"model.layers.{{i}}.self_attn.{name}.{{p}}",
        f"decoder.layers.{{i}}.attn.branch.{name}.{{p}}",
    )
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
]
FEED_FORWARD = [
    Row(f"model.layers.{{i}}.mlp.{name}.{{p}}", f"decoder.layers.{{i}}.ffn.branch.{name}.{{p}}")
    for name in ("gate_proj", "up_proj", "down_proj")
]


def rows(spec: Spec) -> list[Row]:
    return COMMON + ATTENTION + FEED_FORWARD


def ignored(spec: Spec) -> tuple[str, ...]:
    """Names to ignore: old files contain the rotary frequencies, which the config defines."""
    return (r".*rotary_emb\.inv_freq",)


# ── config.json -> spec ─────────────────────────────────────────────────────────────────────────
def decoder_spec(config: Config, layers: Iterable[Layer], positions: Rotary) -> Spec:
    """A pre-norm decoder with a final norm and a tied or untied head."""
    head = (
        None if config.is_base_model() else LmHead(tied=config.flag("tie_word_embeddings", False))
    )
    stack = Stack(group_layers(layers), causal=True, final_norm=True)
    return Spec(
        config.positive_int("vocab_size"),
        config.positive_int("hidden_size"),
        decoder=stack,
        positions=positions,
        head=head,
        max_len=config.positive_int("max_position_embeddings"),
    )


def attention(config: Config, **options: Any) -> Attention:
    n_heads = config.positive_int("num_attention_heads")
    d_head = config.positive_int("head_dim", max(1, config.positive_int("hidden_size") // n_heads))
    return Attention(
        n_heads, config.positive_int("num_key_value_heads", n_heads), d_head, **options
    )


def gated(config: Config, bias: bool = False) -> Gated:
    return Gated(
        config.positive_int("intermediate_size"), config.activation("hidden_act", "silu"), bias
    )


def uniform_layers(config: Config, mixer: Mixer, feed_forward: FeedForward) -> list[Layer]:
    """Equal layers."""
    layer = Layer(
        mixer, feed_forward, Norm("rms", "pre", config.positive_float("rms_norm_eps", 1e-6))
    )
    return [layer] * config.n_layers("num_hidden_layers")


def read_llama(config: Config) -> Spec:
    bias = config.flag("attention_bias", False)
    mixer = attention(config, bias=bias, out_bias=bias)
    return decoder_spec(
        config,
        uniform_layers(config, mixer, gated(config, config.flag("mlp_bias", False))),
        read_rotary(config),
    )


def read_mistral(config: Config) -> Spec:
    window = config.positive_int("sliding_window") if config.has("sliding_window") else None
    return decoder_spec(
        config,
        uniform_layers(config, attention(config, window=window), gated(config)),
        read_rotary(config),
    )


def read_qwen2(config: Config) -> Spec:
    layers = uniform_layers(config, attention(config, bias=True), gated(config))
    return decoder_spec(config, with_sliding_window(config, layers), read_rotary(config))


def read_qwen3(config: Config) -> Spec:
    bias = config.flag("attention_bias", False)
    mixer = attention(config, qk_norm=True, bias=bias, out_bias=bias)
    return decoder_spec(
        config,
        with_sliding_window(config, uniform_layers(config, mixer, gated(config))),
        read_rotary(config),
    )


def with_sliding_window(config: Config, layers: list[Layer]) -> list[Layer]:
    """Qwen: sliding-window attention in the layers of layer_types, or from max_window_layers on."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return layers
    width, start = config.positive_int("sliding_window"), config.fields.get("max_window_layers", 28)
    kinds = config.fields.get("layer_types")
    if kinds is None and type(start) is int:
        kinds = [
            "sliding_attention" if i >= start else "full_attention" for i in range(len(layers))
        ]
    if (
        not isinstance(kinds, list)
        or len(kinds) != len(layers)
        or any(kind not in KINDS for kind in kinds)
    ):
        raise config.error("layer_types", kinds, ", ".join(KINDS))
    windowed = replace(layers[0], mixer=replace(layers[0].mixer, window=width))  # type: ignore[arg-type]
    return [
        windowed if kind == "sliding_attention" else layer
        for layer, kind in zip(layers, kinds, strict=True)
    ]


# ── spec -> config.json ─────────────────────────────────────────────────────────────────────────
def write_common(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    """The fields common to all decoder families.

    Unsupported parts of the spec are found by reading the config again.
    """
    if spec.decoder is None or spec.encoder is not None or not isinstance(spec.positions, Rotary):
        return None
    layers = spec.decoder.each_layer()
    head = spec.head if isinstance(spec.head, LmHead) else None
    return {
        "model_type": model_type,
        "architectures": [f"{name}{'ForCausalLM' if head else 'Model'}"],
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.d_model,
        "num_hidden_layers": len(layers),
        "max_position_embeddings": spec.max_len,
        "rms_norm_eps": layers[0].norm.eps,
        "tie_word_embeddings": bool(head and head.tied),
        **write_rotary(spec.positions),
    }


def write_attention(mixer: Attention) -> dict[str, Any]:
    return {
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_kv_heads,
        "head_dim": mixer.d_head,
    }


def write_dense(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    """The common fields, attention and a gated feed-forward."""
    config = write_common(spec, model_type, name)
    layer = spec.decoder.layers[0] if spec.decoder else None
    if (
        config is None
        or layer is None
        or not isinstance(layer.mixer, Attention)
        or not isinstance(layer.feed_forward, Gated)
    ):
        return None
    ffn = layer.feed_forward
    return (
        config
        | write_attention(layer.mixer)
        | {"intermediate_size": ffn.d_ff, "hidden_act": huggingface_activation(ffn.activation)}
    )


def write_llama(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "llama", "Llama")
    if config is not None and spec.decoder is not None:
        layer = spec.decoder.layers[0]
        config |= {"attention_bias": layer.mixer.bias, "mlp_bias": layer.feed_forward.bias}  # type: ignore[union-attr]
    return config


def write_mistral(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "mistral", "Mistral")
    if config is not None and spec.decoder is not None:
        config |= {"sliding_window": spec.decoder.layers[0].mixer.window}  # type: ignore[union-attr]
    return config


def write_qwen2(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "qwen2", "Qwen2")
    return None if config is None else config | write_windows(spec)


def write_qwen3(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "qwen3", "Qwen3")
    if config is not None and spec.decoder is not None:
        config |= {"attention_bias": spec.decoder.layers[0].mixer.bias} | write_windows(spec)  # type: ignore[union-attr]
    return config


def write_windows(spec: Spec) -> dict[str, Any]:
    windows = (
        [getattr(layer.mixer, "window", None) for layer in spec.decoder.each_layer()]
        if spec.decoder
        else []
    )
    widths = [width for width in windows if width]
    return {
        "use_sliding_window": bool(widths),
        "sliding_window": widths[0] if widths else None,
        "max_window_layers": 0,
        "layer_types": ["sliding_attention" if width else "full_attention" for width in windows],
    }


LLAMA = Family("llama", rows, read_llama, write_llama, "model.", ignored, TIED)
MISTRAL = Family("mistral", rows, read_mistral, write_mistral, "model.", ignored, TIED)
QWEN2 = Family("qwen2", rows, read_qwen2, write_qwen2, "model.", ignored, TIED)
QWEN3 = Family("qwen3", rows, read_qwen3, write_qwen3, "model.", ignored, TIED)
