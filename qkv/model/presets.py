"""Presets: specs of well-known models; their arguments have the published sizes as defaults.

Example: preset("paper-base", layers=3). See docs/explanation/model.md, "Presets".
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from qkv.errors import QkvError, near_miss
from qkv.messages import _
from qkv.model.families import (
    ARGUMENTS,
    decoder_only,
    encoder_decoder,
    encoder_only,
    from_sizes,
    head_width,
)
from qkv.model.spec import (
    Attention,
    FeedForward,
    Gated,
    LatentAttention,
    Layer,
    LmHead,
    MixtureOfExperts,
    Norm,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
    YarnScaling,
)  # fmt: skip

__all__ = [
    "ARGUMENTS",
    "PRESETS",
    "RENAMED",
    "bert",
    "decoder_only",
    "deepseek",
    "encoder_decoder",
    "encoder_only",
    "find_preset",
    "from_sizes",
    "gpt2",
    "llama",
    "marian",
    "preset",
    "qwen",
]


# ── Well-known models ─────────────────────────────────────────────────────────────────────────────
def marian(
    vocab_size: int = 58_101, d_model: int = 512, layers: int = 6, n_heads: int = 8,
    d_ff: int = 2_048,
) -> Spec:  # fmt: skip
    """OPUS-MT: the 2017 base model with SiLU, sinusoids in two halves and a bias on the logits.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.

    Returns:
        The spec.
    """
    spec = from_sizes("encoder-decoder", vocab_size, d_model, layers, n_heads, d_ff,
                      placement="post", activation="silu")
    return replace(spec, positions=Sinusoidal("halves"), head=LmHead(bias=True))


def gpt2(
    vocab_size: int = 50_257, d_model: int = 768, layers: int = 12, n_heads: int = 12,
    d_ff: int = 3_072,
) -> Spec:  # fmt: skip
    """GPT-2: pre-norm, learned positions, GELU (tanh), tied embeddings.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.

    Returns:
        The spec.
    """
    spec = from_sizes("decoder-only", vocab_size, d_model, layers, n_heads, d_ff,
                      positions="learned", activation="gelu_tanh", max_len=1_024)
    return replace(spec, scaled_embedding=False)


def llama(
    vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int,
    n_kv_heads: int | None = None, window: int | None = None, qk_norm: bool = False,
    theta: float = 10_000.0, tied: bool = False, max_len: int = 4_096, n_experts: int = 0,
    n_experts_per_token: int = 2,
) -> Spec:  # fmt: skip
    """Llama; with a window Mistral, with experts Mixtral.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.
        n_kv_heads: Key/value heads; None: as many as query heads.
        window: Sliding window in tokens; None: full attention.
        qk_norm: RMSNorm on queries and keys.
        theta: Base of the rotary frequencies.
        tied: The output layer shares the embedding table.
        max_len: Longest sequence in tokens.
        n_experts: Experts of each feed-forward; 0: a dense feed-forward.
        n_experts_per_token: Experts that process each token.

    Returns:
        The spec.
    """
    d_head = head_width(d_model, n_heads)
    heads = Attention(n_heads, n_kv_heads or n_heads, d_head, window, qk_norm=qk_norm)
    feed_forward: FeedForward = Gated(d_ff)
    if n_experts:
        feed_forward = MixtureOfExperts(n_experts, n_experts_per_token, Gated(d_ff))
    spec = decoder_only(vocab_size, d_model, layers, heads, feed_forward)
    return replace(spec, positions=Rotary(theta), head=LmHead(tied), max_len=max_len)


def qwen(
    vocab_size: int = 151_936, d_model: int = 1_024, layers: int = 28, n_heads: int = 16,
    n_kv_heads: int = 8, d_head: int = 128, d_ff: int = 3_072,
) -> Spec:  # fmt: skip
    """Qwen3-0.6B: QK norm, heads wider than d_model / n_heads.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        n_kv_heads: Key/value heads.
        d_head: Width of a head.
        d_ff: Width of the feed-forward.

    Returns:
        The spec.
    """
    heads = Attention(n_heads, n_kv_heads, d_head, qk_norm=True)
    spec = decoder_only(vocab_size, d_model, layers, heads, Gated(d_ff), eps=1e-6)
    return replace(spec, positions=Rotary(theta=1e6), head=LmHead(tied=True), max_len=40_960)


def deepseek(
    vocab_size: int = 102_400, d_model: int = 2_048, layers: int = 27, n_heads: int = 16,
    d_ff: int = 10_944, n_experts: int = 64, n_experts_per_token: int = 6, d_expert: int = 1_408,
) -> Spec:  # fmt: skip
    """DeepSeek-V2-Lite: MLA; one dense layer, then MoE with a shared expert of twice the width.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the dense feed-forward of the first layer.
        n_experts: Experts of each other layer.
        n_experts_per_token: Experts that process each token.
        d_expert: Width of an expert.

    Returns:
        The spec.
    """
    latent = LatentAttention(
        n_heads, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )
    experts = MixtureOfExperts(
        n_experts, n_experts_per_token, expert=Gated(d_expert), shared_expert=Gated(2 * d_expert),
        norm_topk_prob=False,
    )  # fmt: skip
    first = Layer(latent, Gated(d_ff), Norm("rms", "pre", 1e-6))
    rest = replace(first, feed_forward=experts, repeat=layers - 1)
    decoder = Stack((first, rest), causal=True, final_norm=True)
    # YaRN's score factor m(s) = 0.1 * 0.707 * ln(s) + 1, squared because q and k both carry it.
    mscale = (0.1 * 0.707 * math.log(40.0) + 1) ** 2
    positions = Rotary(interleaved=True, scaling=YarnScaling(40.0, 4_096, mscale=mscale))
    return Spec(vocab_size, d_model, decoder=decoder, positions=positions,
                head=LmHead(tied=False), max_len=163_840)


def _sized(build: Callable[..., Spec], *sizes: int, **more: Any) -> Callable[..., Spec]:
    """A builder with these defaults: vocab_size, d_model, layers, n_heads, d_ff and `more`."""
    names = ("vocab_size", "d_model", "layers", "n_heads", "d_ff")
    return partial(build, **dict(zip(names, sizes, strict=True)), **more)


bert = _sized(encoder_only, 30_522, 768, 12, 12, 3_072)
LM_SIZES = {
    "lm-0.3m": (256, 64, 5, 2, 192), "lm-1m": (1_000, 128, 4, 4, 384),
    "lm-10m": (8_000, 320, 6, 5, 960), "lm-30m": (8_000, 512, 8, 8, 1_408),
    "lm-100m": (16_000, 768, 12, 12, 2_048),
}  # fmt: skip
PRESETS: dict[str, Callable[..., Spec]] = {
    "seq2seq": partial(from_sizes, "encoder-decoder"),
    "causal-lm": partial(from_sizes, "decoder-only"),
    "sentence-encoder": partial(from_sizes, "encoder-only"),
    "paper-base": _sized(encoder_decoder, 37_000, 512, 6, 8, 2_048),
    "paper-big": _sized(encoder_decoder, 37_000, 1_024, 6, 16, 4_096, dropout=0.3),
    "tiny": _sized(encoder_decoder, 10_000, 128, 4, 4, 256, dropout=0.3),
    "small": _sized(encoder_decoder, 10_000, 512, 3, 8, 2_048),
    "marian": marian, "gpt2": gpt2, "qwen": qwen, "deepseek": deepseek,
    "llama": _sized(llama, 32_000, 288, 6, 6, 768, tied=True, max_len=256),
    "llama2-7b": _sized(llama, 32_000, 4_096, 32, 32, 11_008),
    "llama3-8b": _sized(llama, 128_256, 4_096, 32, 32, 14_336,
                        n_kv_heads=8, theta=500_000.0, max_len=8_192),
    "mistral": _sized(llama, 32_000, 4_096, 32, 32, 14_336,
                      n_kv_heads=8, window=4_096, max_len=32_768),
    "mixtral": _sized(llama, 32_000, 4_096, 32, 32, 14_336,
                      n_kv_heads=8, n_experts=8, theta=1e6, max_len=32_768),
    "bert": bert,
    "minilm": _sized(encoder_only, 30_522, 384, 6, 12, 1_536),
    # Small Llama decoders to train from scratch, with a tied head and QK norm, which allows higher
    # learning rates.
    **{name: _sized(llama, *sizes, qk_norm=True, tied=True, max_len=512)
       for name, sizes in LM_SIZES.items()},
}  # fmt: skip
# names of presets in old recipes -> current names
RENAMED = {name.replace("lm-", "writer-"): name for name in LM_SIZES}


def preset(name: str, **arguments: Any) -> Spec:
    """Return the spec of a well-known model.

    >>> preset("paper-base", layers=3).d_model
    512

    Args:
        name: The name of the preset, such as "tiny", "gpt2" or "llama3-8b".
        arguments: Sizes to change, such as layers=3; each preset has those of its function.

    Returns:
        The spec.

    Raises:
        QkvError: There is no such preset.
    """
    return find_preset(name)(**arguments)


def find_preset(name: str) -> Callable[..., Spec]:
    """Return the function of a preset.

    Args:
        name: The name of the preset.

    Returns:
        The function; its arguments change the sizes.

    Raises:
        QkvError: There is no such preset.
    """
    if name not in PRESETS:
        raise QkvError(name, _("no such preset"), near_miss(RENAMED.get(name, name), PRESETS))
    return PRESETS[name]
