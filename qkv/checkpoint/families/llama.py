"""Llama's line: Llama 2 and 3, Mistral, Qwen 2, 2.5 and 3, whose names all of today's decoders have taken over.

In: their config.json. Out: our spec, and back; one table of names serves all. Told in docs/convert.md, "Families".
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from qkv.checkpoint.families.config import Config, grouped, their_activation
from qkv.checkpoint.families.rotary import read_rotary, write_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import (
    FeedForward,
    Gated,
    Heads,
    Layer,
    LmHead,
    Mixer,
    Norm,
    Rotary,
    Spec,
    Stack,
)

KINDS = ("sliding_attention", "full_attention")
COPIES = {"lm_head.weight": ("model.embed_tokens.weight",)}

FRAME = [
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
    return FRAME + ATTENTION + FEED_FORWARD


def spare(spec: Spec) -> tuple[str, ...]:
    """Old files keep the speeds of the rotation, which the config tells."""
    return (r".*rotary_emb\.inv_freq",)


# ── config.json -> spec ──────────────────────────────────────────────────────────────────────────────────────────
def frame(config: Config, layers: Iterable[Layer], positions: Rotary) -> Spec:
    """What all of today's decoders share: norms before, a last norm, a head tied or not."""
    head = None if config.is_bare() else LmHead(tied=config.flag("tie_word_embeddings", False))
    stack = Stack(grouped(layers), "past", final_norm=True)
    return Spec(
        config.whole("vocab_size"),
        config.whole("hidden_size"),
        decoder=stack,
        positions=positions,
        head=head,
        max_len=config.whole("max_position_embeddings"),
    )


def heads(config: Config, **more: Any) -> Heads:
    n_heads = config.whole("num_attention_heads")
    d_head = config.whole("head_dim", max(1, config.whole("hidden_size") // n_heads))
    return Heads(n_heads, config.whole("num_key_value_heads", n_heads), d_head, **more)


def gated(config: Config, bias: bool = False) -> Gated:
    return Gated(config.whole("intermediate_size"), config.activation("hidden_act", "silu"), bias)


def alike(config: Config, mixer: Mixer, feed_forward: FeedForward) -> list[Layer]:
    """All layers the same."""
    layer = Layer(mixer, feed_forward, Norm("rms", "pre", config.number("rms_norm_eps", 1e-6)))
    return [layer] * config.layers("num_hidden_layers")


def read_llama(config: Config) -> Spec:
    bias = config.flag("attention_bias", False)
    mixer = heads(config, bias=bias, out_bias=bias)
    return frame(
        config,
        alike(config, mixer, gated(config, config.flag("mlp_bias", False))),
        read_rotary(config),
    )


def read_mistral(config: Config) -> Spec:
    window = config.whole("sliding_window") if config.has("sliding_window") else None
    return frame(
        config, alike(config, heads(config, window=window), gated(config)), read_rotary(config)
    )


def read_qwen2(config: Config) -> Spec:
    layers = alike(config, heads(config, bias=True), gated(config))
    return frame(config, windowed(config, layers), read_rotary(config))


def read_qwen3(config: Config) -> Spec:
    bias = config.flag("attention_bias", False)
    mixer = heads(config, qk_norm=True, bias=bias, out_bias=bias)
    return frame(config, windowed(config, alike(config, mixer, gated(config))), read_rotary(config))


def windowed(config: Config, layers: list[Layer]) -> list[Layer]:
    """Qwen: the layers that layer_types names, or those from max_window_layers on, see through a window."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return layers
    width, start = config.whole("sliding_window"), config.fields.get("max_window_layers", 28)
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
        raise config.wrong("layer_types", kinds, ", ".join(KINDS))
    narrow = replace(layers[0], mixer=replace(layers[0].mixer, window=width))  # type: ignore[arg-type]
    return [
        narrow if kind == "sliding_attention" else layer
        for layer, kind in zip(layers, kinds, strict=True)
    ]


# ── spec -> config.json ──────────────────────────────────────────────────────────────────────────────────────────
def write_frame(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    """The fields that all of today's decoders share; what they cannot say shows when the config is read again."""
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


def write_heads(mixer: Heads) -> dict[str, Any]:
    return {
        "num_attention_heads": mixer.n_heads,
        "num_key_value_heads": mixer.n_kv_heads,
        "head_dim": mixer.d_head,
    }


def write_dense(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    """Frame, heads and a gated feed-forward."""
    config = write_frame(spec, model_type, name)
    layer = spec.decoder.layers[0] if spec.decoder else None
    if (
        config is None
        or layer is None
        or not isinstance(layer.mixer, Heads)
        or not isinstance(layer.feed_forward, Gated)
    ):
        return None
    part = layer.feed_forward
    return (
        config
        | write_heads(layer.mixer)
        | {"intermediate_size": part.d_ff, "hidden_act": their_activation(part.activation)}
    )


def write_llama(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "llama", "Llama")
    if config is not None and spec.decoder is not None:
        layer = spec.decoder.layers[0]
        config |= {"attention_bias": layer.mixer.bias, "mlp_bias": layer.feed_forward.bias}  # type: ignore[union-attr]
    return config


def write_mistral(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "mistral", "Mistral")
    return (
        None
        if config is None or spec.decoder is None
        else config | {"sliding_window": spec.decoder.layers[0].mixer.window}
    )  # type: ignore[union-attr]


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


LLAMA = Family("llama", rows, read_llama, write_llama, "model.", spare, COPIES)
MISTRAL = Family("mistral", rows, read_mistral, write_mistral, "model.", spare, COPIES)
QWEN2 = Family("qwen2", rows, read_qwen2, write_qwen2, "model.", spare, COPIES)
QWEN3 = Family("qwen3", rows, read_qwen3, write_qwen3, "model.", spare, COPIES)
