"""Our model as CTranslate2's: the same arithmetic under their names.

In: a spec and its weights. Out: their tree with every weight in its place, or one line with all that they cannot say.
Told in docs/ctranslate2.md, "What fits".
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model import spec as s
from qkv.model.positions import sinusoids
from qkv.model.possible import turned_width

ACTIVATIONS = {
    "relu": "RELU",
    "relu2": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
}

Weights = dict[str, np.ndarray]


# ── What they cannot say ─────────────────────────────────────────────────────────────────────────────────────────
def refuse_inexpressible(spec: s.Spec) -> None:
    """One line that names every part for which CTranslate2 has no words."""
    parts = list(inexpressible(spec))
    if parts:
        raise QkvError(
            "model.json",
            _("CTranslate2 has no way to say {parts}", parts=listed(parts)),
            _("such a model stays in our own format"),
        )


def inexpressible(spec: s.Spec) -> Iterator[str]:
    if spec.decoder is None or spec.decoder.sees != "past":
        yield _("a model that writes nothing word by word")
    if not isinstance(spec.head, s.LmHead):
        yield f"head {spec.head.kind if spec.head else None}"
    if spec.token_types:
        yield f"token_types {spec.token_types}"
    if isinstance(spec.positions, s.Rotary) and not isinstance(
        spec.positions.scaling, s.LinearScaling | None
    ):
        yield f"positions.scaling {spec.positions.scaling.kind}"
    for side, stack in stacks(spec).items():
        if len(set(stack.each_layer())) > 1:
            yield _("{side}.layers that differ", side=side)
        yield from (f"{side}.{part}" for part in inexpressible_in(stack))
    if len({layer.norm.eps for stack in stacks(spec).values() for layer in stack.layers}) > 1:
        yield _("two sizes of norm.eps")


def inexpressible_in(stack: s.Stack) -> Iterator[str]:
    layer, mixer = stack.layers[0], stack.layers[0].mixer
    if layer.norm.kind == "batch":
        yield "norm batch"
    if stack.final_norm and layer.norm.place == "post":
        yield _("final_norm after post-norm layers")
    if not isinstance(mixer, s.Heads):
        yield f"mixer {mixer.kind}"
    elif mixer.window is not None:
        yield f"window {mixer.window}"
    elif layer.cross is not None and shape_of(layer.cross) != shape_of(mixer):
        yield _("cross with heads of another shape")
    if layer.cross is not None and layer.cross.qk_norm:
        yield "cross.qk_norm"  # CTranslate2 4.8 norms the queries of all heads as one: another number
    if isinstance(layer.feed_forward, s.Experts):
        yield "feed_forward experts"
    elif isinstance(layer.feed_forward, s.Gated) and layer.feed_forward.activation == "relu2":
        yield "gated relu2"


def stacks(spec: s.Spec) -> dict[str, s.Stack]:
    return {
        side: stack
        for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        if stack
    }


def shape_of(heads: s.Heads) -> tuple[int, int, int]:
    return heads.n_heads, heads.n_kv_heads, heads.d_head


# ── Their tree ───────────────────────────────────────────────────────────────────────────────────────────────────
def their_model(spec: s.Spec, weights: Weights) -> Any:
    """Their specification of the whole model, filled."""
    from ctranslate2 import specs

    left = dict(weights)
    assert spec.decoder is not None
    decoder = specs.TransformerDecoderSpec(
        **options(spec, spec.decoder), with_encoder_attention=spec.encoder is not None
    )
    decoder.embeddings.weight = weights["embed.weight"]
    decoder.projection.weight = left.pop("lm_head.weight", weights["embed.weight"])
    if "lm_head.bias" in left:
        decoder.projection.bias = left.pop("lm_head.bias")
    fill_stack(decoder, spec, "decoder", left)
    if spec.encoder is None:
        model: Any = specs.TransformerDecoderModelSpec(decoder)
    else:
        encoder = specs.TransformerEncoderSpec(**options(spec, spec.encoder))
        encoder.embeddings[0].weight = left.pop("source_embed.weight", weights["embed.weight"])
        fill_stack(encoder, spec, "encoder", left)
        model = specs.TransformerSpec(encoder, decoder)
    del left["embed.weight"]
    assert not left, f"no place for {sorted(left)}"
    return model


def options(spec: s.Spec, stack: s.Stack) -> dict[str, Any]:
    """What their constructors ask for; squared ReLU is a gate that is its own input: relu(z) * z."""
    from ctranslate2 import specs

    layer, ffn = stack.layers[0], stack.layers[0].feed_forward
    assert isinstance(layer.mixer, s.Heads) and isinstance(ffn, s.Dense | s.Gated)
    heads = layer.mixer
    return {
        "num_layers": len(stack.each_layer()),
        "num_heads": heads.n_heads,
        "qk_norm": heads.qk_norm,
        "num_heads_kv": heads.n_kv_heads if heads.n_kv_heads != heads.n_heads else None,
        "head_dim": heads.d_head if heads.d_head * heads.n_heads != spec.d_model else None,
        "pre_norm": layer.norm.place == "pre",
        "rms_norm": layer.norm.kind == "rms",
        "no_final_norm": not stack.final_norm,
        "layernorm_embedding": stack.embed_norm,
        "ffn_glu": isinstance(ffn, s.Gated) or ffn.activation == "relu2",
        "activation": getattr(specs.Activation, ACTIVATIONS[ffn.activation]),
        **rotary_options(spec.positions, heads),
    }


def rotary_options(positions: s.Positions, heads: s.Heads) -> dict[str, Any]:
    from ctranslate2 import specs

    if not isinstance(positions, s.Rotary):
        return {}
    options = {
        "rotary_dim": turned_width(heads, positions),
        "rotary_interleave": positions.pairs == "adjacent",
        "rotary_base": positions.base,
    }
    if isinstance(positions.scaling, s.LinearScaling):
        options |= {
            "rotary_scaling_type": specs.RotaryScalingType.Linear,
            "rotary_scaling_factor": positions.scaling.factor,
        }
    return options


# ── Weights into their places; what is taken leaves `left` ───────────────────────────────────────────────────────
def fill_stack(theirs: Any, spec: s.Spec, side: str, left: Weights) -> None:
    theirs.scale_embeddings = spec.scaled_embedding
    if not isinstance(spec.positions, s.Rotary):
        theirs.position_encodings.encodings = position_table(spec, side, left)
    for name, ours in (("layernorm_embedding", "embed_norm"), ("layer_norm", "norm")):
        if f"{side}.{ours}.weight" in left:
            fill_norm(getattr(theirs, name), f"{side}.{ours}", left)
    for number, layer in enumerate(theirs.layer):
        name = f"{side}.layers.{number}"
        fill_attention(
            layer.self_attention,
            f"{name}.attn",
            left,
            (("q_proj", "k_proj", "v_proj"), ("o_proj",)),
        )
        if hasattr(layer, "attention"):
            without_qk_norm(layer.attention)
            fill_attention(
                layer.attention,
                f"{name}.cross",
                left,
                (("q_proj",), ("k_proj", "v_proj"), ("o_proj",)),
            )
        fill_feed_forward(layer.ffn, f"{name}.ffn", left)


def position_table(spec: s.Spec, side: str, left: Weights) -> np.ndarray:
    """A row for each place; without one they would add sines of their own.

    One row more than we ever use: their scoring of a translation of full length looks at the place after it.
    """
    match spec.positions:
        case s.Learned(first=first):
            return np.pad(left.pop(f"{side}.positions.weight")[first:], ((0, 1), (0, 0)))
        case s.Sinusoidal(layout=layout):
            return sinusoids(torch.arange(spec.max_len + 1), spec.d_model, layout).float().numpy()
        case _:
            return np.zeros((spec.max_len + 1, spec.d_model), dtype=np.float32)


def fill_attention(
    theirs: Any, name: str, left: Weights, maps: tuple[tuple[str, ...], ...]
) -> None:
    """Each tuple of our maps is one of theirs, side by side."""
    fill_norm(theirs.layer_norm, f"{name}.norm", left)
    for linear, ours in zip(theirs.linear, maps, strict=True):
        fill_linear(linear, [f"{name}.branch.{one}" for one in ours], left)
    for norm in ("q_norm", "k_norm"):
        if hasattr(theirs, norm):
            fill_norm(getattr(theirs, norm), f"{name}.branch.{norm}", left)


def without_qk_norm(theirs: Any) -> None:
    """Their decoder has one switch for both attentions; cross-attention has no such norms here."""
    for norm in ("q_norm", "k_norm"):
        if hasattr(theirs, norm):
            delattr(theirs, norm)


def fill_feed_forward(theirs: Any, name: str, left: Weights) -> None:
    fill_norm(theirs.layer_norm, f"{name}.norm", left)
    up, gate, down = (f"{name}.branch.{one}" for one in ("up_proj", "gate_proj", "down_proj"))
    fill_linear(theirs.linear_1, [down], left)
    if f"{gate}.weight" in left:
        fill_linear(theirs.linear_0, [gate], left)
        fill_linear(theirs.linear_0_noact, [up], left)
        return
    fill_linear(theirs.linear_0, [up], left)
    if hasattr(theirs, "linear_0_noact"):  # squared ReLU
        theirs.linear_0_noact.weight, theirs.linear_0_noact.bias = (
            theirs.linear_0.weight,
            theirs.linear_0.bias,
        )


def fill_linear(theirs: Any, ours: list[str], left: Weights) -> None:
    theirs.weight = np.concatenate([left.pop(f"{name}.weight") for name in ours])  # (out, in)
    if f"{ours[0]}.bias" in left:
        theirs.bias = np.concatenate([left.pop(f"{name}.bias") for name in ours])


def fill_norm(theirs: Any, name: str, left: Weights) -> None:
    theirs.gamma = left.pop(f"{name}.weight")
    if hasattr(theirs, "beta"):
        theirs.beta = left.pop(f"{name}.bias")
