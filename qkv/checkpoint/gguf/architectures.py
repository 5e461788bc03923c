"""GGUF architectures: choose the one that supports a spec, with its tensor names.

A part that the nearest architecture does not support is an error.
See docs/gguf.md, "Supported architectures".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.checkpoint.families.config import biased_attention, group_layers
from qkv.checkpoint.names import Row
from qkv.checkpoint.target_spec import is_absorbable, nearest, refuse_unsupported, target_weights
from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model.spec import (
    Attention,
    Dense,
    FeedForward,
    Gated,
    Layer,
    Learned,
    LinearScaling,
    LlamaScaling,
    LmHead,
    MixtureOfExperts,
    Norm,
    Positions,
    Rotary,
    Spec,
    Stack,
)

BRANCH = "decoder.layers.{i}.attn.branch"
FFN_BRANCH = "decoder.layers.{i}.ffn.branch"
PROJECTIONS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


@dataclass(frozen=True)
class PermutedHeads(Row):
    """Query and key projections of Llama: llama.cpp rotates interleaved pairs of dimensions.

    (0, 1), (2, 3), ... of a head, where most checkpoints rotate i with i + d_head / 2.
    """

    d_head: int = 0

    def to_foreign(self, tensors: list[Tensor]) -> list[Tensor]:
        return [permute_heads(tensor, (2, self.d_head // 2)) for tensor in tensors]

    def to_native(self, tensors: list[Tensor]) -> list[Tensor]:
        return [permute_heads(tensor, (self.d_head // 2, 2)) for tensor in tensors]


class Concatenated(Row):
    """One foreign matrix is several native ones, concatenated."""

    def to_native(self, tensors: list[Tensor]) -> list[Tensor]:
        return list(tensors[0].chunk(len(self.native)))

    def to_foreign(self, tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat(tensors)]


@dataclass(frozen=True)
class Architecture:
    """A model architecture of llama.cpp."""

    name: str
    nearest: Callable[[Spec], Spec | None]  # the nearest spec that it supports
    rows: Callable[[Spec], list[Row]]  # the name mapping


def permute_heads(weight: Tensor, pair: tuple[int, int]) -> Tensor:
    """Permute the outputs of each head: reshape them to `pair` and transpose."""
    return weight.unflatten(0, (-1, *pair)).transpose(1, 2).reshape(weight.shape)


# ── Names ───────────────────────────────────────────────────────────────────────────────────────
COMMON = [
    Row("token_embd.{p}", "embed.{p}"),
    Row("blk.{i}.attn_norm.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    Row("blk.{i}.ffn_norm.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Row("output_norm.{p}", "decoder.norm.{p}"),
    Row("output.{p}", "lm_head.{p}"),
]
ATTENTION = [
    Row(f"blk.{{i}}.{foreign}.{{p}}", f"{BRANCH}.{native}.{{p}}")
    for native, foreign in PROJECTIONS.items()
]
FEED_FORWARD = [
    Row(f"blk.{{i}}.ffn_{name}.{{p}}", f"{FFN_BRANCH}.{name}_proj.{{p}}")
    for name in ("gate", "up", "down")
]
EXPERTS = [Row("blk.{i}.ffn_gate_inp.{p}", f"{FFN_BRANCH}.router.{{p}}")] + [
    Row(f"blk.{{i}}.ffn_{name}_exps.weight", f"{FFN_BRANCH}.experts.{name}_proj")
    for name in ("gate", "up", "down")
]
GPT2_ROWS = [
    Row("position_embd.{p}", "decoder.positions.{p}"),
    Concatenated("blk.{i}.attn_qkv.{p}", tuple(f"{BRANCH}.{name}_proj.{{p}}" for name in "qkv")),
    Row("blk.{i}.attn_output.{p}", f"{BRANCH}.o_proj.{{p}}"),
]


def llama_rows(spec: Spec) -> list[Row]:
    assert isinstance(spec.positions, Rotary)
    if spec.positions.interleaved:
        return COMMON + ATTENTION + FEED_FORWARD + EXPERTS
    permuted = [
        PermutedHeads(
            f"blk.{{i}}.{PROJECTIONS[name]}.{{p}}",
            f"{BRANCH}.{name}.{{p}}",
            attention_of(spec).d_head,
        )
        for name in ("q_proj", "k_proj")
    ]
    return COMMON + ATTENTION[2:4] + permuted + FEED_FORWARD + EXPERTS


# ── The nearest supported spec ──────────────────────────────────────────────────────────────────
def attention_of(spec: Spec) -> Attention:
    assert spec.decoder is not None and isinstance(spec.decoder.layers[0].mixer, Attention)
    return spec.decoder.layers[0].mixer


def base_spec(
    spec: Spec, mixer: Attention, feed_forward: FeedForward, norm: str, positions: Positions
) -> Spec:
    """What all architectures share: equal pre-norm layers, a final norm, a head without bias."""
    assert spec.decoder is not None
    layers = spec.decoder.each_layer()
    layer = Layer(mixer, feed_forward, Norm(norm, "pre", layers[0].norm.eps))  # type: ignore[arg-type]
    tied = isinstance(spec.head, LmHead) and spec.head.tied and not spec.scaled_embedding
    return Spec(
        spec.vocab_size,
        spec.d_model,
        None,
        Stack(group_layers([layer] * len(layers)), causal=True, final_norm=True),
        positions,
        LmHead(tied),
        max_len=spec.max_len,
    )


def first_parts(spec: Spec) -> tuple[Attention, FeedForward] | None:
    """The attention and feed-forward of the first layer; None if no architecture supports them."""
    if spec.decoder is None or spec.encoder is not None:
        return None
    layer = spec.decoder.layers[0]
    return (layer.mixer, layer.feed_forward) if isinstance(layer.mixer, Attention) else None


def rotary_decoder(spec: Spec, **options: bool) -> Spec | None:
    """A decoder with RoPE, RMSNorm, SwiGLU and these options of attention."""
    parts, rotary = first_parts(spec), spec.positions
    if parts is None or not isinstance(rotary, Rotary) or isinstance(parts[1], Dense):
        return None
    mixer, feed_forward = parts
    # A window of at least max_len masks nothing.
    window = mixer.window if mixer.window and mixer.window >= spec.max_len else None
    scaling = rotary.scaling if isinstance(rotary.scaling, LinearScaling | LlamaScaling) else None
    mixer = replace(mixer, window=window, **options)  # type: ignore[arg-type]
    positions = Rotary(rotary.theta, scaling=scaling)
    return base_spec(spec, mixer, swiglu(feed_forward), "rms", positions)


def swiglu(ffn: FeedForward) -> FeedForward:
    """SwiGLU, dense or as experts like Mixtral's."""
    if isinstance(ffn, MixtureOfExperts):
        return MixtureOfExperts(ffn.n_experts, ffn.n_experts_per_token, Gated(ffn.expert.d_ff))
    return Gated(ffn.d_ff, "silu", ffn.bias)


def nearest_llama(spec: Spec) -> Spec | None:
    found = rotary_decoder(spec, qk_norm=False)
    assert isinstance(spec.positions, Rotary) or found is None
    if found is None or not isinstance(found.positions, Rotary):
        return None
    positions = replace(found.positions, interleaved=spec.positions.interleaved)  # type: ignore[union-attr]
    return replace(found, positions=positions)


def nearest_qwen2(spec: Spec) -> Spec | None:
    return without_experts(rotary_decoder(spec, qk_norm=False, bias=True, out_bias=False))


def nearest_qwen3(spec: Spec) -> Spec | None:
    return without_experts(rotary_decoder(spec, qk_norm=True, bias=False, out_bias=False))


def nearest_gemma(spec: Spec) -> Spec | None:
    """GeGLU, and embeddings times sqrt(d_model); GGUF stores the norms with unit offset added."""
    found = without_experts(rotary_decoder(spec, qk_norm=False, bias=False, out_bias=False))
    if found is None or found.decoder is None:
        return None
    layer = found.decoder.layers[0]
    geglu = Gated(layer.feed_forward.d_ff, "gelu_tanh")  # type: ignore[union-attr]
    stack = replace(found.decoder, layers=(replace(layer, feed_forward=geglu),))
    return replace(found, decoder=stack, head=LmHead(True), scaled_embedding=True)


def without_experts(spec: Spec | None) -> Spec | None:
    if spec is None or spec.decoder is None:
        return spec
    return None if isinstance(spec.decoder.layers[0].feed_forward, MixtureOfExperts) else spec


def nearest_gpt2(spec: Spec) -> Spec | None:
    parts = first_parts(spec)
    if parts is None or not isinstance(parts[1], Dense):
        return None
    n_heads = parts[0].n_heads
    mixer = biased_attention(n_heads, spec.d_model)
    return base_spec(spec, mixer, Dense(parts[1].d_ff, "gelu_tanh", bias=True), "layer", Learned())


# The first that supports a spec is used: Qwen 2 before Llama, whose biases not all software reads.
ARCHITECTURES = [
    Architecture("qwen2", nearest_qwen2, lambda spec: COMMON + ATTENTION + FEED_FORWARD),
    Architecture("llama", nearest_llama, llama_rows),
    Architecture("qwen3", nearest_qwen3, lambda spec: COMMON + ATTENTION + FEED_FORWARD),
    Architecture("gemma", nearest_gemma, lambda spec: COMMON + ATTENTION + FEED_FORWARD),
    Architecture("gpt2", nearest_gpt2, lambda spec: COMMON + GPT2_ROWS + FEED_FORWARD),
]


# ── Choosing the architecture ───────────────────────────────────────────────────────────────────
def choose_architecture(spec: Spec) -> tuple[Architecture, Spec]:
    """The architecture that supports this spec, and its nearest spec."""
    targets = [
        (architecture, target)
        for architecture in ARCHITECTURES
        if (target := architecture.nearest(spec)) is not None
    ]
    if not targets:
        raise QkvError(
            "model.json",
            _("no GGUF architecture fits this model"),
            _("supported: {names}", names=listed(each.name for each in ARCHITECTURES)),
        )
    chosen, target, parts = nearest(spec, targets, is_absorbable_in_gguf)
    wrong = _(
        "the nearest GGUF architecture, {name}, does not support {parts}",
        name=chosen.name,
        parts=listed(parts),
    )
    refuse_unsupported(parts, wrong)
    return chosen, target


def is_absorbable_in_gguf(path: str, native: object, target: object) -> bool:
    """Whether a difference can be absorbed into the weights.

    As for other formats, and the embedding's scale, and a tied head as a copy of the embedding.
    """
    return is_absorbable(path, native, target) or (
        path in ("scaled_embedding", "head.tied") and native is True and target is False
    )


def gguf_weights(weights: Mapping[str, Tensor], spec: Spec, target: Spec) -> dict[str, Tensor]:
    """Weights of the target spec that compute the same function."""
    new = dict(weights)
    if spec.scaled_embedding and not target.scaled_embedding:
        new.setdefault("lm_head.weight", weights["embed.weight"])
        new["embed.weight"] = weights["embed.weight"] * math.sqrt(spec.d_model)
    return target_weights(new, spec, target)
