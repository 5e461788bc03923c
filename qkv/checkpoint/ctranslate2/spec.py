"""Convert a spec and its weights to a CTranslate2 model specification.

Parts that CTranslate2 does not support are an error.
See docs/guides/import-export.md, "Supported architectures".
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from qkv.messages import _
from qkv.model import spec as s
from qkv.model.check_spec import custom_parts, rotated_width
from qkv.model.positions import sinusoids

ACTIVATIONS = {
    "relu": "RELU",
    "relu2": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
}

PROJECTIONS = {  # the native projections in each matrix of an attention, by their number
    2: (("q_proj", "k_proj", "v_proj"), ("o_proj",)),  # self-attention
    3: (("q_proj",), ("k_proj", "v_proj"), ("o_proj",)),  # cross-attention
}

Weights = dict[str, np.ndarray]


# ── Unsupported parts ───────────────────────────────────────────────────────────────────────────
def unsupported_parts(spec: s.Spec) -> Iterator[str]:
    """Every part that CTranslate2 does not support."""
    if spec.decoder is None or not spec.decoder.causal:
        yield _("a model without a causal decoder")
    if not isinstance(spec.head, s.LmHead):
        yield f"head {spec.head.kind if spec.head else None}"
    if spec.token_types:
        yield f"token_types {spec.token_types}"
    if isinstance(spec.positions, s.Rotary) and not isinstance(
        spec.positions.scaling, s.LinearScaling | None
    ):
        yield f"positions.scaling {spec.positions.scaling.kind}"
    if isinstance(spec.positions, s.ALiBi):
        yield "positions alibi"
    yield from (f"{path} custom" for path in custom_parts(spec))
    for side, stack in stacks(spec).items():
        if len(set(stack.each_layer())) > 1:
            yield _("different {side}.layers", side=side)
        yield from (f"{side}.{part}" for part in unsupported_in(stack))
    if len({layer.norm.eps for stack in stacks(spec).values() for layer in stack.layers}) > 1:
        yield _("different values of norm.eps")


def unsupported_in(stack: s.Stack) -> Iterator[str]:
    layer, mixer = stack.layers[0], stack.layers[0].mixer
    if layer.norm.kind == "batch":
        yield "norm batch"
    if stack.final_norm and layer.norm.placement == "post":
        yield _("final_norm after post-norm layers")
    if not isinstance(mixer, s.Attention | s.Custom):
        yield f"mixer {mixer.kind}"
    elif isinstance(mixer, s.Custom):
        return  # named already
    elif mixer.window is not None:
        yield f"window {mixer.window}"
    elif layer.cross is not None and shape_of(layer.cross) != shape_of(mixer):
        yield _("cross-attention heads of another shape")
    if layer.cross is not None and layer.cross.qk_norm:
        yield "cross.qk_norm"  # CTranslate2 4.8 normalizes over all heads at once
    if not layer.residual:
        yield _("layers without residual connections")
    if layer.feed_forward is None:
        yield _("layers without a feed-forward")
    if isinstance(layer.feed_forward, s.MixtureOfExperts):
        yield "feed_forward experts"
    elif isinstance(layer.feed_forward, s.Gated) and layer.feed_forward.activation == "relu2":
        yield "gated relu2"


def stacks(spec: s.Spec) -> dict[str, s.Stack]:
    return {side: stack for side in ("encoder", "decoder") if (stack := getattr(spec, side))}


def shape_of(heads: s.Attention) -> tuple[int, int, int]:
    return heads.n_heads, heads.n_kv_heads, heads.d_head


# ── The specification ───────────────────────────────────────────────────────────────────────────
def ctranslate2_model(spec: s.Spec, weights: Weights) -> Any:
    """The CTranslate2 specification of the model with its weights."""
    from ctranslate2 import specs

    remaining = dict(weights)
    assert spec.decoder is not None
    decoder = specs.TransformerDecoderSpec(
        **options(spec, spec.decoder), with_encoder_attention=spec.encoder is not None
    )
    decoder.embeddings.weight = weights["embed.weight"]
    decoder.projection.weight = remaining.pop("lm_head.weight", weights["embed.weight"])
    if "lm_head.bias" in remaining:
        decoder.projection.bias = remaining.pop("lm_head.bias")
    fill_stack(decoder, spec, "decoder", remaining)
    if spec.encoder is None:
        model: Any = specs.TransformerDecoderModelSpec(decoder)
    else:
        encoder = specs.TransformerEncoderSpec(**options(spec, spec.encoder))
        encoder.embeddings[0].weight = remaining.pop("source_embed.weight", weights["embed.weight"])
        fill_stack(encoder, spec, "encoder", remaining)
        model = specs.TransformerSpec(encoder, decoder)
    del remaining["embed.weight"]
    assert not remaining, f"unused weights: {sorted(remaining)}"
    return model


def options(spec: s.Spec, stack: s.Stack) -> dict[str, Any]:
    """Constructor options; squared ReLU is a gated unit with equal gate and input: relu(z) * z."""
    from ctranslate2 import specs

    layer, ffn = stack.layers[0], stack.layers[0].feed_forward
    assert isinstance(layer.mixer, s.Attention) and isinstance(ffn, s.Dense | s.Gated)
    heads = layer.mixer
    return {
        "num_layers": len(stack.each_layer()),
        "num_heads": heads.n_heads,
        "qk_norm": heads.qk_norm,
        "num_heads_kv": heads.n_kv_heads if heads.n_kv_heads != heads.n_heads else None,
        "head_dim": heads.d_head if heads.d_head * heads.n_heads != spec.d_model else None,
        "pre_norm": layer.norm.placement == "pre",
        "rms_norm": layer.norm.kind == "rms",
        "no_final_norm": not stack.final_norm,
        "layernorm_embedding": stack.embed_norm,
        "ffn_glu": isinstance(ffn, s.Gated) or ffn.activation == "relu2",
        "activation": getattr(specs.Activation, ACTIVATIONS[ffn.activation]),
        **rotary_options(spec.positions, heads),
    }


def rotary_options(positions: s.Positions, heads: s.Attention) -> dict[str, Any]:
    from ctranslate2 import specs

    if not isinstance(positions, s.Rotary):
        return {}
    options = {
        "rotary_dim": rotated_width(heads, positions),
        "rotary_interleave": positions.interleaved,
        "rotary_base": positions.theta,
    }
    if isinstance(positions.scaling, s.LinearScaling):
        options |= {
            "rotary_scaling_type": specs.RotaryScalingType.Linear,
            "rotary_scaling_factor": positions.scaling.factor,
        }
    return options


# ── Weights: each one used is removed from `remaining` ──────────────────────────────────────────
def fill_stack(target: Any, spec: s.Spec, side: str, remaining: Weights) -> None:
    target.scale_embeddings = spec.scaled_embedding
    if not isinstance(spec.positions, s.Rotary):
        target.position_encodings.encodings = position_table(spec, side, remaining)
    for name, native in (("layernorm_embedding", "embed_norm"), ("layer_norm", "norm")):
        if f"{side}.{native}.weight" in remaining:
            fill_norm(getattr(target, name), f"{side}.{native}", remaining)
    for number, layer in enumerate(target.layer):
        name = f"{side}.layers.{number}"
        fill_attention(layer.self_attention, f"{name}.attn", remaining)
        if hasattr(layer, "attention"):
            fill_attention(layer.attention, f"{name}.cross", remaining)
        fill_feed_forward(layer.ffn, f"{name}.ffn", remaining)


def position_table(spec: s.Spec, side: str, remaining: Weights) -> np.ndarray:
    """A row for each position; without a table CTranslate2 adds sinusoids.

    max_len + 1 rows: scoring a translation of full length reads the position after it.
    """
    match spec.positions:
        case s.Learned(first=first):
            return np.pad(remaining.pop(f"{side}.positions.weight")[first:], ((0, 1), (0, 0)))
        case s.Sinusoidal(layout=layout):
            return sinusoids(torch.arange(spec.max_len + 1), spec.d_model, layout).float().numpy()
        case _:
            return np.zeros((spec.max_len + 1, spec.d_model), dtype=np.float32)


def fill_attention(target: Any, name: str, remaining: Weights) -> None:
    """Each tuple of native projections is one concatenated matrix."""
    fill_norm(target.layer_norm, f"{name}.norm", remaining)
    for linear, group in zip(target.linear, PROJECTIONS[len(target.linear)], strict=True):
        fill_linear(linear, [f"{name}.branch.{projection}" for projection in group], remaining)
    for norm in ("q_norm", "k_norm"):
        if f"{name}.branch.{norm}.weight" in remaining:
            fill_norm(getattr(target, norm), f"{name}.branch.{norm}", remaining)
        elif hasattr(target, norm):  # cross-attention: CTranslate2 has one option for both
            delattr(target, norm)


def fill_feed_forward(target: Any, name: str, remaining: Weights) -> None:
    fill_norm(target.layer_norm, f"{name}.norm", remaining)
    up, gate, down = (f"{name}.branch.{key}_proj" for key in ("up", "gate", "down"))
    is_gated = f"{gate}.weight" in remaining
    fill_linear(target.linear_0, [gate if is_gated else up], remaining)
    fill_linear(target.linear_1, [down], remaining)
    if is_gated:
        fill_linear(target.linear_0_noact, [up], remaining)
    elif hasattr(target, "linear_0_noact"):  # squared ReLU
        target.linear_0_noact.weight = target.linear_0.weight
        target.linear_0_noact.bias = target.linear_0.bias


def fill_linear(target: Any, names: list[str], remaining: Weights) -> None:
    target.weight = np.concatenate([remaining.pop(f"{name}.weight") for name in names])  # (out, in)
    if f"{names[0]}.bias" in remaining:
        target.bias = np.concatenate([remaining.pop(f"{name}.bias") for name in names])


def fill_norm(target: Any, name: str, remaining: Weights) -> None:
    target.gamma = remaining.pop(f"{name}.weight")
    if hasattr(target, "beta"):
        target.beta = remaining.pop(f"{name}.bias")
