"""Presets: functions that return the spec of a well-known model, with the published sizes as defaults of their arguments.

In: a name such as "paper-base" and arguments such as layers=3. Out: the spec. Told in docs/model.md, "Presets".
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from qkv.errors import QkvError, near_miss
from qkv.messages import N_, _, listed
from qkv.model.spec import (
    Activation,
    Convolution,
    Dense,
    Experts,
    FeedForward,
    Gated,
    Heads,
    Latent,
    Layer,
    Learned,
    LmHead,
    Mixer,
    NoPositions,
    Norm,
    Pooler,
    Positions,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
    YarnScaling,
)  # fmt: skip

POSITIONS: dict[str, Positions] = {"sinusoidal": Sinusoidal(), "learned": Learned(), "rotary": Rotary(), "none": NoPositions()}

ARGUMENTS = {  # of from_sizes, for `qkv train --explain`
    "layers": N_("blocks in each stack"),
    "d_model": N_("width of the residual stream"),
    "n_heads": N_("attention heads"),
    "d_ff": N_("width of the feed-forward"),
    "dropout": N_("fraction of activations set to zero in training"),
    "norm": N_("layer, rms or batch: kind of norm"),
    "place": N_("pre: norm before each branch; post: after the sum (2017)"),
    "positions": N_("sinusoidal, learned, rotary or none: position encoding"),
    "activation": N_("relu, relu2, gelu, gelu_tanh or silu: activation of the feed-forward"),
    "gated": N_("a gate in the feed-forward (SwiGLU with silu)"),
    "bias": N_("biases in linear maps"),
    "convolution": N_("width of a convolution that replaces attention in the first layer; 0: none"),
    "qk_norm": N_("RMSNorm on queries and keys, which allows higher learning rates"),
    "tied": N_("the output layer shares the embedding table"),
    "max_len": N_("longest sequence in tokens; a language model takes context instead"),
}  # fmt: skip


# ── Builders ─────────────────────────────────────────────────────────────────────────────────────────────────────
def from_sizes(
    family: Literal["encoder-decoder", "decoder-only", "encoder-only"],
    vocab_size: int = 8_000, d_model: int = 128, layers: int = 4, n_heads: int = 4, d_ff: int = 512, dropout: float = 0.1,
    norm: Literal["layer", "rms", "batch"] = "layer", place: Literal["pre", "post"] = "pre",
    positions: Literal["sinusoidal", "learned", "rotary", "none"] = "rotary", activation: Activation = "relu",
    gated: bool = False, bias: bool = True, convolution: int = 0, qk_norm: bool = False, tied: bool = True, max_len: int = 512,
) -> Spec:  # fmt: skip
    """A model of any family from sizes and choices; the defaults are a small one with pre-norm and rotary positions."""
    heads = Heads(n_heads, n_heads, head_width(d_model, n_heads), bias=bias, out_bias=bias, qk_norm=qk_norm)
    wide = (Gated if gated else Dense)(d_ff, activation, bias)
    layer = Layer(heads, wide, Norm(norm, place), repeat=layers)
    alike = _after_convolution(layer, convolution) if convolution else (layer,)
    last = place == "pre"  # a pre-norm residual stream is not yet normalized when it leaves the last layer
    cross = replace(heads, qk_norm=False)  # no other software can express norms on both sides of cross-attention
    encoder, decoder = Stack(alike, "all", last), Stack(alike, "past", last)
    if family == "encoder-decoder":
        decoder = replace(decoder, layers=tuple(replace(one, cross=cross) for one in alike))
    return Spec(
        vocab_size, d_model, None if family == "decoder-only" else encoder, None if family == "encoder-only" else decoder,
        POSITIONS[positions], LmHead(tied), scaled_embedding=True, max_len=max_len, dropout=dropout,
    )  # fmt: skip


def head_width(d_model: int, n_heads: int) -> int:
    """d_model / n_heads, if that is a whole number."""
    if d_model % n_heads:
        good = [str(n) for n in range(1, d_model + 1) if d_model % n == 0 and n <= 4 * n_heads]
        wrong = _("{d_model} does not divide into {n_heads} heads", d_model=d_model, n_heads=n_heads)
        raise QkvError("model.n_heads", wrong, _("use {good}", good=listed(good)))
    return d_model // n_heads


def _after_convolution(layer: Layer, width: int) -> tuple[Layer, ...]:
    """The first layer mixes its nearest neighbors by a convolution, the others attend."""
    first, rest = replace(layer, mixer=Convolution(width), repeat=1), replace(layer, repeat=layer.repeat - 1)
    return (first, rest) if rest.repeat else (first,)


def encoder_decoder(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int, dropout: float = 0.1) -> Spec:
    """The 2017 encoder-decoder at any size: post-norm, sinusoidal positions, ReLU, one shared embedding table."""
    return from_sizes("encoder-decoder", vocab_size, d_model, layers, n_heads, d_ff, dropout,
                      place="post", positions="sinusoidal", max_len=1_024)


def decoder_only(vocab_size: int, d_model: int, layers: int, mixer: Mixer, feed_forward: FeedForward) -> Spec:
    """Llama's decoder with any mixer and feed-forward: RMSNorm before each branch, rotary positions, no biases."""
    layer = Layer(mixer, feed_forward, Norm("rms", "pre"), repeat=layers)
    return Spec(vocab_size, d_model, decoder=Stack((layer,), "past", final_norm=True), head=LmHead(tied=False))


def encoder_only(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int) -> Spec:
    """BERT's encoder at any size: post-norm, learned positions, exact GELU, a pooler."""
    heads = Heads(n_heads, n_heads, head_width(d_model, n_heads), bias=True, out_bias=True)
    layer = Layer(heads, Dense(d_ff, "gelu", bias=True), Norm("layer", "post", 1e-12), repeat=layers)
    stack = Stack((layer,), "all", embed_norm=True)
    return Spec(vocab_size, d_model, stack, None, Learned(), Pooler(), token_types=2, max_len=512, dropout=0.1)


# ── Well-known models ────────────────────────────────────────────────────────────────────────────────────────────
def marian(vocab_size: int = 58_101, d_model: int = 512, layers: int = 6, n_heads: int = 8, d_ff: int = 2_048) -> Spec:
    """OPUS-MT: the paper's base with SiLU, sines and cosines in two halves and a bias on the logits."""
    spec = from_sizes("encoder-decoder", vocab_size, d_model, layers, n_heads, d_ff, place="post", activation="silu")
    return replace(spec, positions=Sinusoidal("halves"), head=LmHead(bias=True))


def gpt2(vocab_size: int = 50_257, d_model: int = 768, layers: int = 12, n_heads: int = 12, d_ff: int = 3_072) -> Spec:
    spec = from_sizes("decoder-only", vocab_size, d_model, layers, n_heads, d_ff,
                      positions="learned", activation="gelu_tanh", max_len=1_024)
    return replace(spec, scaled_embedding=False)


def llama(
    vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int, n_kv_heads: int | None = None, window: int | None = None,
    qk_norm: bool = False, base: float = 10_000.0, tied: bool = False, max_len: int = 4_096, n_experts: int = 0, n_active: int = 2,
) -> Spec:  # fmt: skip
    """Llama's decoder at any size; a window makes it Mistral's, experts Mixtral's. n_kv_heads None: as many as heads."""
    heads = Heads(n_heads, n_kv_heads or n_heads, head_width(d_model, n_heads), window, qk_norm=qk_norm)
    wide = Experts(n_experts, n_active, Gated(d_ff)) if n_experts else Gated(d_ff)
    spec = decoder_only(vocab_size, d_model, layers, heads, wide)
    return replace(spec, positions=Rotary(base), head=LmHead(tied), max_len=max_len)


def qwen(
    vocab_size: int = 151_936, d_model: int = 1_024, layers: int = 28, n_heads: int = 16, n_kv_heads: int = 8,
    d_head: int = 128, d_ff: int = 3_072,
) -> Spec:  # fmt: skip
    """Qwen3-0.6B: norms on queries and keys, heads wider than d_model / n_heads."""
    layer = Layer(Heads(n_heads, n_kv_heads, d_head, qk_norm=True), Gated(d_ff), Norm("rms", "pre", 1e-6), repeat=layers)
    stack = Stack((layer,), "past", final_norm=True)
    return Spec(vocab_size, d_model, decoder=stack, positions=Rotary(base=1e6), head=LmHead(tied=True), max_len=40_960)


def deepseek(
    vocab_size: int = 102_400, d_model: int = 2_048, layers: int = 27, n_heads: int = 16, d_ff: int = 10_944,
    n_experts: int = 64, n_active: int = 6, d_expert: int = 1_408,
) -> Spec:  # fmt: skip
    """DeepSeek-V2-Lite: latent attention, one dense layer, then routed experts and a shared one of twice their width."""
    latent = Latent(n_heads, kv_rank=512, d_nope=128, d_rope=64, d_value=128)
    experts = Experts(n_experts, n_active, each=Gated(d_expert), shared=Gated(2 * d_expert), normalised=False)
    first = Layer(latent, Gated(d_ff), Norm("rms", "pre", 1e-6))
    stack = Stack((first, replace(first, feed_forward=experts, repeat=layers - 1)), "past", final_norm=True)
    # YaRN's score factor m(s) = 0.1 * 0.707 * ln(s) + 1, squared because q and k both carry it.
    yarn = YarnScaling(factor=40.0, first_len=4_096, score_sharpness=(0.1 * 0.707 * math.log(40.0) + 1) ** 2)
    positions = Rotary(pairs="adjacent", scaling=yarn)
    return Spec(vocab_size, d_model, decoder=stack, positions=positions, head=LmHead(tied=False), max_len=163_840)


def _sizes(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int, **more: Any) -> dict[str, Any]:
    return {"vocab_size": vocab_size, "d_model": d_model, "layers": layers, "n_heads": n_heads, "d_ff": d_ff, **more}


OWN: dict[str, Any] = {"qk_norm": True, "tied": True, "max_len": 512}
bert = partial(encoder_only, **_sizes(30_522, 768, 12, 12, 3_072))
PRESETS: dict[str, Callable[..., Spec]] = {
    "seq2seq": partial(from_sizes, "encoder-decoder"),
    "causal-lm": partial(from_sizes, "decoder-only"),
    "sentence-encoder": partial(from_sizes, "encoder-only"),
    "paper-base": partial(encoder_decoder, **_sizes(37_000, 512, 6, 8, 2_048)),
    "paper-big": partial(encoder_decoder, **_sizes(37_000, 1_024, 6, 16, 4_096, dropout=0.3)),
    "tiny": partial(encoder_decoder, **_sizes(10_000, 128, 4, 4, 256, dropout=0.3)),
    "small": partial(encoder_decoder, **_sizes(10_000, 512, 3, 8, 2_048)),
    "marian": marian, "gpt2": gpt2, "qwen": qwen, "deepseek": deepseek,
    "llama": partial(llama, **_sizes(32_000, 288, 6, 6, 768, tied=True, max_len=256)),
    "llama2-7b": partial(llama, **_sizes(32_000, 4_096, 32, 32, 11_008)),
    "llama3-8b": partial(llama, **_sizes(128_256, 4_096, 32, 32, 14_336, n_kv_heads=8, base=500_000.0, max_len=8_192)),
    "mistral": partial(llama, **_sizes(32_000, 4_096, 32, 32, 14_336, n_kv_heads=8, window=4_096, max_len=32_768)),
    "mixtral": partial(llama, **_sizes(32_000, 4_096, 32, 32, 14_336, n_kv_heads=8, n_experts=8, base=1e6, max_len=32_768)),
    "bert": bert,
    "minilm": partial(encoder_only, **_sizes(30_522, 384, 6, 12, 1_536)),
    # Llama's decoder for one's own training: norms on queries and keys, which allow higher learning rates, and a tied head.
    "lm-0.3m": partial(llama, **_sizes(256, 64, 5, 2, 192, **OWN)),
    "lm-1m": partial(llama, **_sizes(1_000, 128, 4, 4, 384, **OWN)),
    "lm-10m": partial(llama, **_sizes(8_000, 320, 6, 5, 960, **OWN)),
    "lm-30m": partial(llama, **_sizes(8_000, 512, 8, 8, 1_408, **OWN)),
    "lm-100m": partial(llama, **_sizes(16_000, 768, 12, 12, 2_048, **OWN)),
}  # fmt: skip
RENAMED = {name.replace("lm-", "writer-"): name for name in PRESETS if name.startswith("lm-")}  # as old recipes write them


def preset(name: str, **arguments: Any) -> Spec:
    """The spec of a preset; arguments change its sizes."""
    return find_preset(name)(**arguments)


def find_preset(name: str) -> Callable[..., Spec]:
    """The function of this name."""
    if name not in PRESETS:
        raise QkvError(name, _("no such preset"), near_miss(RENAMED.get(name, name), PRESETS))
    return PRESETS[name]
