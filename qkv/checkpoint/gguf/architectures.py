"""GGUF's architectures: which of llama.cpp's models compute what a spec says, and their names for the weights.

In: a spec. Out: the architecture that can say all of it, with its table of names; or one line that names the parts for
which the nearest has no words. Told in docs/gguf.md, "What fits".
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qkv.checkpoint.families.config import biased_heads, grouped
from qkv.checkpoint.huggingface.export import expressed, mendable, nearest, refuse_inexpressible
from qkv.checkpoint.names import Row
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import (
    Dense,
    Experts,
    FeedForward,
    Gated,
    Heads,
    Layer,
    Learned,
    LinearScaling,
    LlamaScaling,
    LmHead,
    Norm,
    Positions,
    Rotary,
    Spec,
    Stack,
)

BRANCH = "decoder.layers.{i}.attn.branch"
WIDE = "decoder.layers.{i}.ffn.branch"
MAPS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


@dataclass(frozen=True)
class Neighbours(Row):
    """llama.cpp's Llama turns neighbours (0, 1), (2, 3) ... of a head where today's checkpoints turn 0 with half + 0."""

    d_head: int = 0

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [swapped(one, (2, self.d_head // 2)) for one in ours]

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [swapped(one, (self.d_head // 2, 2)) for one in theirs]


class SideBySide(Row):
    """Their one matrix holds several of ours, one under the other."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return list(theirs[0].chunk(len(self.ours)))

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [torch.cat(ours)]


@dataclass(frozen=True)
class Architecture:
    """One of llama.cpp's models."""

    name: str
    nearest: Callable[
        [Spec], Spec | None
    ]  # what it would make of a spec: the same where it can say it
    rows: Callable[[Spec], list[Row]]  # the table of names


def swapped(weight: Tensor, pair: tuple[int, int]) -> Tensor:
    """The outputs of each head, laid out as a table of this shape, in the order of its columns."""
    return weight.unflatten(0, (-1, *pair)).transpose(1, 2).reshape(weight.shape)


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────
FRAME = [
    Row("token_embd.{p}", "embed.{p}"),
    Row("blk.{i}.attn_norm.{p}", "decoder.layers.{i}.attn.norm.{p}"),
    Row("blk.{i}.ffn_norm.{p}", "decoder.layers.{i}.ffn.norm.{p}"),
    Row("output_norm.{p}", "decoder.norm.{p}"),
    Row("output.{p}", "lm_head.{p}"),
]
ATTENTION = [
    Row(f"blk.{{i}}.{theirs}.{{p}}", f"{BRANCH}.{ours}.{{p}}") for ours, theirs in MAPS.items()
]
FEED_FORWARD = [
    Row(f"blk.{{i}}.ffn_{name}.{{p}}", f"{WIDE}.{name}_proj.{{p}}")
    for name in ("gate", "up", "down")
]
EXPERTS = [Row("blk.{i}.ffn_gate_inp.{p}", f"{WIDE}.router.{{p}}")] + [
    Row(f"blk.{{i}}.ffn_{name}_exps.weight", f"{WIDE}.experts.{name}_proj")
    for name in ("gate", "up", "down")
]
GPT2_ROWS = [
    Row("position_embd.{p}", "decoder.positions.{p}"),
    SideBySide("blk.{i}.attn_qkv.{p}", tuple(f"{BRANCH}.{name}_proj.{{p}}" for name in "qkv")),
    Row("blk.{i}.attn_output.{p}", f"{BRANCH}.o_proj.{{p}}"),
]


def llama_rows(spec: Spec) -> list[Row]:
    assert isinstance(spec.positions, Rotary)
    if spec.positions.pairs == "adjacent":
        return FRAME + ATTENTION + FEED_FORWARD + EXPERTS
    turned = [
        Neighbours(f"blk.{{i}}.{MAPS[name]}.{{p}}", f"{BRANCH}.{name}.{{p}}", heads_of(spec).d_head)
        for name in ("q_proj", "k_proj")
    ]
    return FRAME + ATTENTION[2:4] + turned + FEED_FORWARD + EXPERTS


# ── The nearest spec that each can say ───────────────────────────────────────────────────────────────────────────
def heads_of(spec: Spec) -> Heads:
    assert spec.decoder is not None and isinstance(spec.decoder.layers[0].mixer, Heads)
    return spec.decoder.layers[0].mixer


def rebuilt(
    spec: Spec, mixer: Heads, feed_forward: FeedForward, norm: str, positions: Positions
) -> Spec:
    """The frame that all of them share: equal layers, norms before and at the end, a head without bias."""
    assert spec.decoder is not None
    layers = spec.decoder.each_layer()
    layer = Layer(mixer, feed_forward, Norm(norm, "pre", layers[0].norm.eps))  # type: ignore[arg-type]
    tied = isinstance(spec.head, LmHead) and spec.head.tied and not spec.scaled_embedding
    return Spec(
        spec.vocab_size,
        spec.d_model,
        None,
        Stack(grouped([layer] * len(layers)), "past", True),
        positions,
        LmHead(tied),
        max_len=spec.max_len,
    )


def first_parts(spec: Spec) -> tuple[Heads, FeedForward] | None:
    """The mixer and the feed-forward of the first layer; None where no architecture of ours has such a thing."""
    if spec.decoder is None or spec.encoder is not None:
        return None
    layer = spec.decoder.layers[0]
    return (layer.mixer, layer.feed_forward) if isinstance(layer.mixer, Heads) else None


def today(spec: Spec, **heads: bool) -> Spec | None:
    """Rotary, RMSNorm, SwiGLU, with these choices in the heads."""
    parts, where = first_parts(spec), spec.positions
    if parts is None or not isinstance(where, Rotary) or isinstance(parts[1], Dense):
        return None
    mixer, wide = parts
    window = (
        mixer.window if mixer.window and mixer.window >= spec.max_len else None
    )  # a window that hides nothing
    scaling = where.scaling if isinstance(where.scaling, LinearScaling | LlamaScaling) else None
    mixer = replace(mixer, window=window, **heads)  # type: ignore[arg-type]
    return rebuilt(spec, mixer, silu(wide), "rms", Rotary(where.base, 1.0, "halves", scaling))


def silu(wide: FeedForward) -> FeedForward:
    """SwiGLU, alone or as experts of Mixtral's kind."""
    if isinstance(wide, Experts):
        return Experts(wide.n_experts, wide.n_active, Gated(wide.each.d_ff))
    return Gated(wide.d_ff, "silu", wide.bias)


def nearest_llama(spec: Spec) -> Spec | None:
    found = today(spec, qk_norm=False)
    assert isinstance(spec.positions, Rotary) or found is None
    return found and replace(found, positions=replace(found.positions, pairs=spec.positions.pairs))  # type: ignore


def nearest_qwen2(spec: Spec) -> Spec | None:
    return without_experts(today(spec, qk_norm=False, bias=True, out_bias=False))


def nearest_qwen3(spec: Spec) -> Spec | None:
    return without_experts(today(spec, qk_norm=True, bias=False, out_bias=False))


def nearest_gemma(spec: Spec) -> Spec | None:
    """GeGLU, and embeddings times sqrt(d_model); its norms' 1 + w is written as one number, which is what we have."""
    found = without_experts(today(spec, qk_norm=False, bias=False, out_bias=False))
    if found is None or found.decoder is None:
        return None
    layer = found.decoder.layers[0]
    wide = Gated(layer.feed_forward.d_ff, "gelu_tanh")  # type: ignore[union-attr]
    stack = replace(found.decoder, layers=(replace(layer, feed_forward=wide),))
    return replace(found, decoder=stack, head=LmHead(True), scaled_embedding=True)


def without_experts(spec: Spec | None) -> Spec | None:
    return None if spec and isinstance(spec.decoder.layers[0].feed_forward, Experts) else spec  # type: ignore[union-attr]


def nearest_gpt2(spec: Spec) -> Spec | None:
    parts = first_parts(spec)
    if parts is None or not isinstance(parts[1], Dense):
        return None
    n_heads = parts[0].n_heads
    mixer = biased_heads(n_heads, spec.d_model)
    return rebuilt(spec, mixer, Dense(parts[1].d_ff, "gelu_tanh", bias=True), "layer", Learned())


# The first that can say all of a spec is taken: Qwen 2 before Llama, whose biases not every reader knows.
ARCHITECTURES = [
    Architecture("qwen2", nearest_qwen2, lambda spec: FRAME + ATTENTION + FEED_FORWARD),
    Architecture("llama", nearest_llama, llama_rows),
    Architecture("qwen3", nearest_qwen3, lambda spec: FRAME + ATTENTION + FEED_FORWARD),
    Architecture("gemma", nearest_gemma, lambda spec: FRAME + ATTENTION + FEED_FORWARD),
    Architecture("gpt2", nearest_gpt2, lambda spec: FRAME + GPT2_ROWS + FEED_FORWARD),
]


# ── Choosing ─────────────────────────────────────────────────────────────────────────────────────────────────────
def choose(spec: Spec) -> tuple[Architecture, Spec]:
    """The architecture that can say this spec, and the spec as it says it."""
    targets = [(one, target) for one in ARCHITECTURES if (target := one.nearest(spec)) is not None]
    if not targets:
        names = ", ".join(one.name for one in ARCHITECTURES)
        raise QkvError(
            "model.json",
            _("llama.cpp has no model of this shape that we write"),
            _("we write {names}", names=names),
        )
    chosen, target, parts = nearest(spec, targets, can_mend)
    refuse_inexpressible(parts, _("GGUF's nearest architecture, {name},", name=chosen.name))
    return chosen, target


def can_mend(path: str, ours: object, theirs: object) -> bool:
    """What other weights can say: biases of zeros, a scale inside the table, a head with a copy of the table."""
    return mendable(path, ours, theirs) or (
        path in ("scaled_embedding", "head.tied") and ours is True and theirs is False
    )


def told(weights: Mapping[str, Tensor], spec: Spec, target: Spec) -> dict[str, Tensor]:
    """The weights of the target spec that compute the same."""
    new = dict(weights)
    if spec.scaled_embedding and not target.scaled_embedding:
        new.setdefault("lm_head.weight", weights["embed.weight"])
        new["embed.weight"] = weights["embed.weight"] * math.sqrt(spec.d_model)
    return expressed(new, spec, target)
