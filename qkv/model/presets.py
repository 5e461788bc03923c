"""Well-known models by name: each preset is a function that returns a spec.

In: a name such as "paper-base". Out: the spec with the published sizes. Told in docs/model.md, "Presets".
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from qkv.errors import QkvError, near_miss
from qkv.language import say
from qkv.model.spec import (
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
    Norm,
    Pooler,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
    YarnScaling,
)  # fmt: skip


def translator(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int, dropout: float = 0.1) -> Spec:
    """The 2017 encoder-decoder at any size: post-norm, sinusoids, ReLU, one shared table."""
    heads = Heads(n_heads, n_heads, d_model // n_heads, bias=True, out_bias=True)
    layer = Layer(heads, Dense(d_ff, "relu", bias=True), Norm("layer", "post"), repeat=layers)
    encoder, decoder = Stack((layer,), "all"), Stack((replace(layer, cross=heads),), "past")
    return Spec(vocab_size, d_model, encoder, decoder, Sinusoidal(), LmHead(), scaled_embedding=True, dropout=dropout)


def writer(vocab_size: int, d_model: int, layers: int, mixer: Mixer, feed_forward: FeedForward) -> Spec:
    """Today's decoder at any size: RMSNorm before each branch, rotary positions, no biases."""
    layer = Layer(mixer, feed_forward, Norm("rms", "pre"), repeat=layers)
    return Spec(vocab_size, d_model, decoder=Stack((layer,), "past", final_norm=True), head=LmHead(tied=False))


def reader(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int) -> Spec:
    """BERT's encoder at any size: post-norm, learned positions, exact GELU, a pooler."""
    heads = Heads(n_heads, n_heads, d_model // n_heads, bias=True, out_bias=True)
    layer = Layer(heads, Dense(d_ff, "gelu", bias=True), Norm("layer", "post", 1e-12), repeat=layers)
    stack = Stack((layer,), "all", embed_norm=True)
    return Spec(vocab_size, d_model, stack, None, Learned(), Pooler(), token_types=2, max_len=512, dropout=0.1)


def paper_base() -> Spec:
    return translator(37_000, 512, layers=6, n_heads=8, d_ff=2_048)


def paper_big() -> Spec:
    return translator(37_000, 1_024, layers=6, n_heads=16, d_ff=4_096, dropout=0.3)


def tiny() -> Spec:
    return translator(10_000, 128, layers=4, n_heads=4, d_ff=256, dropout=0.3)


def small() -> Spec:
    return translator(10_000, 512, layers=3, n_heads=8, d_ff=2_048)


def marian() -> Spec:
    """OPUS-MT: the paper's base with SiLU, sines and cosines in two halves and a bias on the logits."""
    heads = Heads(8, 8, 64, bias=True, out_bias=True)
    layer = Layer(heads, Dense(2_048, "silu", bias=True), Norm("layer", "post"), repeat=6)
    encoder, decoder = Stack((layer,), "all"), Stack((replace(layer, cross=heads),), "past")
    head, positions = LmHead(bias=True), Sinusoidal("halves")
    return Spec(58_101, 512, encoder, decoder, positions, head, scaled_embedding=True, max_len=512, dropout=0.1)


def gpt2() -> Spec:
    heads = Heads(12, 12, 64, bias=True, out_bias=True)
    layer = Layer(heads, Dense(3_072, "gelu_tanh", bias=True), Norm("layer", "pre"), repeat=12)
    stack = Stack((layer,), "past", final_norm=True)
    return Spec(50_257, 768, decoder=stack, positions=Learned(), head=LmHead(), max_len=1_024, dropout=0.1)


def llama() -> Spec:
    """A small model of Llama's shape, for one's own training: about 15 M parameters."""
    spec = writer(32_000, 288, 6, Heads(6, 6, 48), Gated(768))
    return replace(spec, head=LmHead(tied=True), max_len=256)


def own_writer(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int) -> Spec:
    """Today's decoder for one's own training: norms on queries and keys, so that it learns fast, and a tied head."""
    spec = writer(vocab_size, d_model, layers, Heads(n_heads, n_heads, d_model // n_heads, qk_norm=True), Gated(d_ff))
    return replace(spec, head=LmHead(tied=True), max_len=512)


def llama2_7b() -> Spec:
    return replace(writer(32_000, 4_096, 32, Heads(32, 32, 128), Gated(11_008)), max_len=4_096)


def llama3_8b() -> Spec:
    spec = writer(128_256, 4_096, 32, Heads(32, 8, 128), Gated(14_336))
    return replace(spec, positions=Rotary(base=500_000.0), max_len=8_192)


def qwen() -> Spec:
    """Qwen3-0.6B: norms on queries and keys, heads wider than the stream divided."""
    spec = writer(151_936, 1_024, 28, Heads(16, 8, 128, qk_norm=True), Gated(3_072))
    layers = tuple(replace(layer, norm=Norm("rms", "pre", 1e-6)) for layer in spec.decoder.layers)  # type: ignore[union-attr]
    stack = Stack(layers, "past", final_norm=True)
    return replace(spec, decoder=stack, positions=Rotary(base=1e6), head=LmHead(tied=True), max_len=40_960)


def mistral() -> Spec:
    spec = writer(32_000, 4_096, 32, Heads(32, 8, 128, window=4_096), Gated(14_336))
    return replace(spec, max_len=32_768)


def mixtral() -> Spec:
    spec = writer(32_000, 4_096, 32, Heads(32, 8, 128), Experts(8, 2, Gated(14_336)))
    return replace(spec, positions=Rotary(base=1e6), max_len=32_768)


def deepseek() -> Spec:
    """DeepSeek-V2-Lite: latent attention, one dense layer, then 64 routed experts (6 active) and 2 shared ones."""
    latent = Latent(n_heads=16, kv_rank=512, d_nope=128, d_rope=64, d_value=128)
    experts = Experts(64, 6, each=Gated(1_408), shared=Gated(2 * 1_408), normalised=False)
    first = Layer(latent, Gated(10_944), Norm("rms", "pre", 1e-6))
    stack = Stack((first, replace(first, feed_forward=experts, repeat=26)), "past", final_norm=True)
    # YaRN's score factor m(s) = 0.1 * 0.707 * ln(s) + 1, squared because q and k both carry it.
    yarn = YarnScaling(factor=40.0, first_len=4_096, score_sharpness=(0.1 * 0.707 * math.log(40.0) + 1) ** 2)
    positions = Rotary(pairs="adjacent", scaling=yarn)
    return Spec(102_400, 2_048, decoder=stack, positions=positions, head=LmHead(tied=False), max_len=163_840)


def bert() -> Spec:
    return reader(30_522, 768, layers=12, n_heads=12, d_ff=3_072)


def minilm() -> Spec:
    return reader(30_522, 384, layers=6, n_heads=12, d_ff=1_536)


PRESETS: dict[str, Callable[[], Spec]] = {
    "paper-base": paper_base, "paper-big": paper_big, "tiny": tiny, "small": small, "marian": marian, "gpt2": gpt2,
    "llama": llama, "llama2-7b": llama2_7b, "llama3-8b": llama3_8b, "qwen": qwen, "mistral": mistral,
    "mixtral": mixtral, "deepseek": deepseek, "bert": bert, "minilm": minilm,
    "writer-0.3m": partial(own_writer, 256, 64, layers=5, n_heads=2, d_ff=192),
    "writer-1m": partial(own_writer, 1_000, 128, layers=4, n_heads=4, d_ff=384),
    "writer-10m": partial(own_writer, 8_000, 320, layers=6, n_heads=5, d_ff=960),
    "writer-30m": partial(own_writer, 8_000, 512, layers=8, n_heads=8, d_ff=1_408),
    "writer-100m": partial(own_writer, 16_000, 768, layers=12, n_heads=12, d_ff=2_048),
}  # fmt: skip


def preset(name: str) -> Spec:
    """The spec of a well-known model."""
    if name not in PRESETS:
        raise QkvError(name, say("no such preset", "没有这个预设"), near_miss(name, PRESETS))
    return PRESETS[name]()
