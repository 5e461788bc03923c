"""GGUF architectures: choose the one that supports a spec, with its tensor names.

A part that the nearest architecture does not support is an error.
See docs/guides/import-export.md, "Supported architectures".
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from qkv.checkpoint.families.config import biased_attention
from qkv.checkpoint.names import NotExpressible, Row, Tensors, Weights, part_rows
from qkv.checkpoint.target_spec import is_absorbable, nearest, target_weights
from qkv.errors import QkvError
from qkv.messages import N_, _, listed
from qkv.model.spec import (
    Attention,
    Custom,
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


@dataclass(frozen=True)
class PermutedHeads(Row):
    """Query and key projections of Llama: llama.cpp rotates interleaved pairs of dimensions.

    (0, 1), (2, 3), ... of a head, where most checkpoints rotate i with i + d_head / 2.
    """

    d_head: int = 0

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return [permute_heads(tensor, (2, self.d_head // 2)) for tensor in tensors]


class Concatenated(Row):
    """One foreign matrix is several native ones, concatenated."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return list(tensors[0].chunk(len(self.native)))

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return [torch.cat(tensors)]


def permute_heads(weight: Tensor, pair: tuple[int, int]) -> Tensor:
    """Permute the outputs of each head: reshape them to `pair` and transpose."""
    return weight.unflatten(0, (-1, *pair)).transpose(1, 2).reshape(weight.shape)


# ── Names ───────────────────────────────────────────────────────────────────────────────────────
ROWS = [
    *part_rows({"token_embd": "embed", "output_norm": "decoder.norm", "output": "lm_head"}),
    *part_rows(
        {
            "attn_norm": "attn.norm",
            "attn_q": "attn.branch.q_proj",
            "attn_k": "attn.branch.k_proj",
            "attn_v": "attn.branch.v_proj",
            "attn_output": "attn.branch.o_proj",
            "attn_q_norm": "attn.branch.q_norm",
            "attn_k_norm": "attn.branch.k_norm",
            "ffn_norm": "ffn.norm",
            "ffn_gate": "ffn.branch.gate_proj",
            "ffn_up": "ffn.branch.up_proj",
            "ffn_down": "ffn.branch.down_proj",
            "ffn_gate_inp": "ffn.branch.router",
        },
        "blk.{i}.",
        "decoder.layers.{i}.",
    ),
    *(
        Row(
            f"blk.{{i}}.ffn_{name}_exps.weight",
            f"decoder.layers.{{i}}.ffn.branch.experts.{name}_proj",
        )
        for name in ("gate", "up", "down")
    ),
]
# Of two rows for the same weight, the later one is used.
GPT2_ROWS = [
    *ROWS,
    Row("position_embd.{p}", "decoder.positions.{p}"),
    Concatenated("blk.{i}.attn_qkv.{p}", tuple(f"{BRANCH}.{name}_proj.{{p}}" for name in "qkv")),
]


def llama_rows(spec: Spec) -> list[Row]:
    assert isinstance(spec.positions, Rotary)
    if spec.positions.interleaved:
        return ROWS
    d_head = decoder_parts(spec)[0].d_head
    return ROWS + [
        PermutedHeads(f"blk.{{i}}.attn_{name}.{{p}}", f"{BRANCH}.{name}_proj.{{p}}", d_head)
        for name in "qk"
    ]


# ── The nearest supported spec ──────────────────────────────────────────────────────────────────
def decoder_parts(spec: Spec) -> tuple[Attention, FeedForward | None]:
    """Attention and feed-forward of the first layer of a decoder-only model."""
    match spec:
        case Spec(encoder=None, decoder=Stack(layers=(Layer(Attention() as mixer, ffn), *_))):
            return mixer, ffn
    raise NotExpressible


def base_spec(
    spec: Spec, mixer: Attention, feed_forward: FeedForward, norm: str, positions: Positions
) -> Spec:
    """What all architectures share: equal pre-norm layers, a final norm, a head without bias."""
    assert spec.decoder is not None
    eps, n_layers = spec.decoder.layers[0].norm.eps, len(spec.decoder.each_layer())
    layer = Layer(mixer, feed_forward, Norm(norm, "pre", eps), repeat=n_layers)  # type: ignore[arg-type]
    stack = Stack((layer,), causal=True, final_norm=True)
    tied = isinstance(spec.head, LmHead) and spec.head.tied and not spec.scaled_embedding
    return Spec(
        spec.vocab_size, spec.d_model, None, stack, positions, LmHead(tied), max_len=spec.max_len
    )


def rotary_decoder(spec: Spec, llama: bool = False, **options: bool) -> Spec:
    """A decoder with RoPE, RMSNorm, SwiGLU and these options of attention.

    Only Llama also has experts and interleaved rotation.
    """
    (mixer, ffn), rotary = decoder_parts(spec), spec.positions
    is_known = llama or isinstance(ffn, Gated)
    if not isinstance(rotary, Rotary) or isinstance(ffn, Dense | Custom | None) or not is_known:
        raise NotExpressible
    # A window of at least max_len masks nothing.
    window = mixer.window if mixer.window and mixer.window >= spec.max_len else None
    scaling = rotary.scaling if isinstance(rotary.scaling, LinearScaling | LlamaScaling) else None
    mixer = replace(mixer, window=window, **options)  # type: ignore[arg-type]
    positions = Rotary(rotary.theta, interleaved=llama and rotary.interleaved, scaling=scaling)
    return base_spec(spec, mixer, swiglu(ffn), "rms", positions)


def swiglu(ffn: Gated | MixtureOfExperts) -> FeedForward:
    """SwiGLU, dense or as experts like Mixtral's."""
    if isinstance(ffn, MixtureOfExperts):
        return MixtureOfExperts(ffn.n_experts, ffn.n_experts_per_token, Gated(ffn.expert.d_ff))
    return Gated(ffn.d_ff, "silu", ffn.bias)


def nearest_gemma(spec: Spec) -> Spec:
    """GeGLU, and embeddings times sqrt(d_model); GGUF stores the norms with unit offset added."""
    found = rotary_decoder(spec, qk_norm=False, bias=False, out_bias=False)
    assert found.decoder is not None
    layer = found.decoder.layers[0]
    geglu = Gated(layer.feed_forward.d_ff, "gelu_tanh")  # type: ignore[union-attr]
    stack = replace(found.decoder, layers=(replace(layer, feed_forward=geglu),))
    return replace(found, decoder=stack, head=LmHead(True), scaled_embedding=True)


def nearest_gpt2(spec: Spec) -> Spec:
    mixer, ffn = decoder_parts(spec)
    if not isinstance(ffn, Dense):
        raise NotExpressible
    mixer = biased_attention(mixer.n_heads, spec.d_model)
    return base_spec(spec, mixer, Dense(ffn.d_ff, "gelu_tanh", bias=True), "layer", Learned())


@dataclass(frozen=True)
class Architecture:
    """A model architecture of llama.cpp."""

    nearest: Callable[[Spec], Spec]  # the nearest spec that it supports, or NotExpressible
    rows: Callable[[Spec], list[Row]] = lambda spec: ROWS  # the name mapping


# The first that supports a spec is used: Qwen 2 before Llama, whose biases not all software reads.
ARCHITECTURES = {
    "qwen2": Architecture(partial(rotary_decoder, qk_norm=False, bias=True, out_bias=False)),
    "llama": Architecture(partial(rotary_decoder, llama=True, qk_norm=False), llama_rows),
    "qwen3": Architecture(partial(rotary_decoder, qk_norm=True, bias=False, out_bias=False)),
    "gemma": Architecture(nearest_gemma),
    "gpt2": Architecture(nearest_gpt2, lambda spec: GPT2_ROWS),
}


# ── Choosing the architecture ───────────────────────────────────────────────────────────────────
def choose_architecture(spec: Spec) -> tuple[str, Spec]:
    """The name of the architecture that supports this spec, and its nearest spec."""
    targets = {}
    for name, architecture in ARCHITECTURES.items():
        with suppress(NotExpressible):
            targets[name] = architecture.nearest(spec)
    if not targets:
        wrong = _("no GGUF architecture fits this model")
        raise QkvError("model.json", wrong, _("supported: {names}", names=listed(ARCHITECTURES)))
    wrong = N_("the nearest GGUF architecture, {name}, does not support {parts}")
    chosen = nearest(spec, targets, is_absorbable_in_gguf, wrong)
    return chosen, targets[chosen]


def is_absorbable_in_gguf(path: str, native: object, target: object) -> bool:
    """Whether a difference can be absorbed into the weights.

    As for other formats, and the embedding's scale, and a tied head as a copy of the embedding.
    """
    return is_absorbable(path, native, target) or (
        path in ("scaled_embedding", "head.tied") and native is True and target is False
    )


def gguf_weights(weights: Weights, spec: Spec, target: Spec) -> Weights:
    """Weights of the target spec that compute the same function."""
    new = dict(weights)
    if spec.scaled_embedding and not target.scaled_embedding:
        new.setdefault("lm_head.weight", weights["embed.weight"])
        new["embed.weight"] = weights["embed.weight"] * math.sqrt(spec.d_model)
    return target_weights(new, spec, target)
