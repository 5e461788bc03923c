"""Llama 2 and 3, Mistral, Qwen 2, 2.5 and 3: config.json and tensor names.

Other decoder families use the same tensor names. See docs/guides/import-export.md, "Families".
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from qkv.checkpoint.families.config import Config, group_layers, huggingface_activation
from qkv.checkpoint.families.rotary import read_rotary, write_rotary
from qkv.checkpoint.names import Family, Fields, Names, NotExpressible, Row, part_rows
from qkv.model.spec import (
    Attention,
    FeedForward,
    Gated,
    LatentAttention,
    Layer,
    LmHead,
    Mixer,
    MixtureOfExperts,
    Norm,
    Rotary,
    Spec,
    Stack,
)

M = TypeVar("M", Attention, LatentAttention)
F = TypeVar("F", Gated, MixtureOfExperts)
KINDS = ("sliding_attention", "full_attention")
TIED = {"lm_head.weight": ("model.embed_tokens.weight",)}
IGNORED = (r".*rotary_emb\.inv_freq",)  # in old files; the config defines the frequencies
WINDOWS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
MODEL = {"model.embed_tokens": "embed", "model.norm": "decoder.norm", "lm_head": "lm_head"}
LAYER = {
    "input_layernorm": "attn.norm",
    "self_attn.q_proj": "attn.branch.q_proj",
    "self_attn.k_proj": "attn.branch.k_proj",
    "self_attn.v_proj": "attn.branch.v_proj",
    "self_attn.o_proj": "attn.branch.o_proj",
    "self_attn.q_norm": "attn.branch.q_norm",
    "self_attn.k_norm": "attn.branch.k_norm",
    "post_attention_layernorm": "ffn.norm",
    "mlp.gate_proj": "ffn.branch.gate_proj",
    "mlp.up_proj": "ffn.branch.up_proj",
    "mlp.down_proj": "ffn.branch.down_proj",
}


decoder_family = partial(Family, ignored=IGNORED, tied=TIED)


def rows(spec: Spec, layer: Names = LAYER) -> list[Row]:
    return part_rows(MODEL) + part_rows(layer, "model.layers.{i}.", "decoder.layers.{i}.")


# ── config.json -> spec ─────────────────────────────────────────────────────────────────────────
def decoder_spec(
    config: Config, layers: Iterable[Layer], tied: bool = False, **rotary: Any
) -> Spec:
    """A pre-norm decoder with a final norm and a head that is `tied` by default."""
    return Spec(
        positions=read_rotary(config, **rotary),
        head=config.lm_head(tied),
        decoder=Stack(group_layers(layers), causal=True, final_norm=True),
        vocab_size=config.positive_int("vocab_size"),
        d_model=config.positive_int("hidden_size"),
        max_len=config.positive_int("max_position_embeddings"),
    )


def attention(config: Config, **options: Any) -> Attention:
    n_heads = config.positive_int("num_attention_heads")
    d_head = config.positive_int("head_dim", max(1, config.positive_int("hidden_size") // n_heads))
    return Attention(
        n_heads, config.positive_int("num_key_value_heads", n_heads), d_head, **options
    )


def biased_if_set(config: Config, **options: Any) -> Attention:
    """Attention with biases if attention_bias is true."""
    bias = config.flag("attention_bias", False)
    return attention(config, bias=bias, out_bias=bias, **options)


def windowed(config: Config) -> Attention:
    """Attention with the sliding window of all layers, if there is one."""
    return attention(config, window=config.optional_int("sliding_window"))


def gated(config: Config, size: str = "intermediate_size", bias: bool = False) -> Gated:
    return Gated(config.positive_int(size), config.activation("hidden_act", "silu"), bias)


def uniform_layers(config: Config, mixer: Mixer, feed_forward: FeedForward) -> list[Layer]:
    """Equal layers."""
    layer = Layer(
        mixer, feed_forward, Norm("rms", "pre", config.positive_float("rms_norm_eps", 1e-6))
    )
    return [layer] * config.n_layers("num_hidden_layers")


def read_llama(config: Config) -> Spec:
    mixer = biased_if_set(config)
    feed_forward = gated(config, bias=config.flag("mlp_bias", False))
    return decoder_spec(config, uniform_layers(config, mixer, feed_forward))


def read_mistral(config: Config) -> Spec:
    return decoder_spec(config, uniform_layers(config, windowed(config), gated(config)))


def read_qwen(config: Config, mixer: Attention) -> Spec:
    """Sliding-window attention in the layers of layer_types, or from max_window_layers on."""
    layers = uniform_layers(config, mixer, gated(config))
    if config.flag("use_sliding_window", False) and config.has("sliding_window"):
        mixer = replace(mixer, window=config.positive_int("sliding_window"))
        sliding = replace(layers[0], mixer=mixer)
        layers = [
            sliding if kind == "sliding_attention" else layers[0]
            for kind in layer_types(config, len(layers))
        ]
    return decoder_spec(config, layers)


def layer_types(config: Config, n_layers: int) -> list[str]:
    kinds, start = config.fields.get("layer_types"), config.fields.get("max_window_layers", 28)
    if kinds is None and type(start) is int:
        kinds = ["full_attention" if i < start else "sliding_attention" for i in range(n_layers)]
    if not isinstance(kinds, list) or len(kinds) != n_layers or any(k not in KINDS for k in kinds):
        raise config.error("layer_types", kinds, ", ".join(KINDS))
    return kinds


# ── spec -> config.json ─────────────────────────────────────────────────────────────────────────
def write_common(
    spec: Spec, mixer: type[M], feed_forward: type[F]
) -> tuple[Fields, list[Layer], M, F]:
    """The fields common to all decoder families, all layers, and their parts of these types.

    The parts are the first layer's, but experts may follow dense layers. An error if there are
    none; other unsupported parts of the spec are found by reading the config again.
    """
    if spec.decoder is None or spec.encoder is not None or not isinstance(spec.positions, Rotary):
        raise NotExpressible
    layers = spec.decoder.each_layer()
    candidates = layers if feed_forward is MixtureOfExperts else layers[:1]
    found = [
        layer.feed_forward for layer in candidates if isinstance(layer.feed_forward, feed_forward)
    ]
    if not found or not isinstance(layers[0].mixer, mixer):
        raise NotExpressible
    ffn = found[0].expert if isinstance(found[0], MixtureOfExperts) else found[0]
    config = {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.d_model,
        "num_hidden_layers": len(layers),
        "max_position_embeddings": spec.max_len,
        "num_attention_heads": layers[0].mixer.n_heads,
        "intermediate_size": ffn.d_ff,
        "hidden_act": huggingface_activation(ffn.activation),
        "rms_norm_eps": layers[0].norm.eps,
        "tie_word_embeddings": isinstance(spec.head, LmHead) and spec.head.tied,
        **write_rotary(spec.positions),
    }
    return config, layers, layers[0].mixer, found[0]


def write_attention(mixer: Attention) -> Fields:
    return {"num_key_value_heads": mixer.n_kv_heads, "head_dim": mixer.d_head}


def write_gated(spec: Spec, *options: str) -> Fields:
    """The fields of a model with attention and a gated feed-forward, and these options."""
    config, layers, mixer, ffn = write_common(spec, Attention, Gated)
    fields = write_windows(layers) | {"attention_bias": mixer.bias, "mlp_bias": ffn.bias}
    return config | write_attention(mixer) | {name: fields[name] for name in options}


def write_windows(layers: list[Layer]) -> Fields:
    windows = [getattr(layer.mixer, "window", None) for layer in layers]
    return {
        "use_sliding_window": any(windows),
        "sliding_window": next(filter(None, windows), None),
        "max_window_layers": 0,
        "layer_types": ["sliding_attention" if width else "full_attention" for width in windows],
    }


LLAMA = decoder_family(
    "Llama", rows, read_llama, lambda spec: write_gated(spec, "attention_bias", "mlp_bias")
)
MISTRAL = decoder_family(
    "Mistral", rows, read_mistral, lambda spec: write_gated(spec, "sliding_window")
)
QWEN2 = decoder_family(
    "Qwen2",
    rows,
    lambda config: read_qwen(config, attention(config, bias=True)),
    lambda spec: write_gated(spec, *WINDOWS),
)
QWEN3 = decoder_family(
    "Qwen3",
    rows,
    lambda config: read_qwen(config, biased_if_set(config, qk_norm=True)),
    lambda spec: write_gated(spec, "attention_bias", *WINDOWS),
)
