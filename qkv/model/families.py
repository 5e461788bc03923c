"""Specs of the three families in any size: encoder-decoder, decoder-only, encoder-only.

See docs/explanation/model.md, "Presets".
"""

from dataclasses import replace
from typing import Literal

from qkv.errors import QkvError
from qkv.limits import NumberRange
from qkv.messages import N_, _, listed
from qkv.model.check_spec import MAX_WIDTH
from qkv.model.spec import (
    Activation,
    ALiBi,
    Attention,
    Convolution,
    Dense,
    FeedForward,
    Gated,
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
)  # fmt: skip

__all__ = ["decoder_only", "encoder_decoder", "encoder_only", "from_sizes"]

POSITIONS: dict[str, Positions] = {
    "sinusoidal": Sinusoidal(), "learned": Learned(), "rotary": Rotary(), "alibi": ALiBi(),
    "none": NoPositions(),
}  # fmt: skip

SIZE_LIMIT = NumberRange(1, MAX_WIDTH)
ARGUMENTS = {  # of from_sizes, for `qkv train --explain`
    "layers": N_("blocks in each stack"),
    "d_model": N_("width of the residual stream"),
    "n_heads": N_("attention heads"),
    "d_ff": N_("width of the feed-forward"),
    "dropout": N_("fraction of activations set to zero in training"),
    "norm": N_("layer, rms or batch: kind of norm"),
    "placement": N_("pre: norm before each branch; post: after the sum (2017)"),
    "positions": N_("sinusoidal, learned, rotary, alibi or none: position encoding"),
    "activation": N_("relu, relu2, gelu, gelu_tanh or silu: activation of the feed-forward"),
    "gated": N_("a gate in the feed-forward (SwiGLU with silu)"),
    "bias": N_("biases in linear maps"),
    "convolution": N_("width of a convolution that replaces attention in the first layer; 0: none"),
    "qk_norm": N_("RMSNorm on queries and keys, which allows higher learning rates"),
    "tied": N_("the output layer shares the embedding table"),
    "max_len": N_("longest sequence in tokens; a language model takes context_length instead"),
}  # fmt: skip


def from_sizes(
    family: Literal["encoder-decoder", "decoder-only", "encoder-only"],
    vocab_size: int = 8_000, d_model: int = 128, layers: int = 4, n_heads: int = 4, d_ff: int = 512,
    dropout: float = 0.1, norm: Literal["layer", "rms", "batch"] = "layer",
    placement: Literal["pre", "post"] = "pre",
    positions: Literal["sinusoidal", "learned", "rotary", "alibi", "none"] = "rotary",
    activation: Activation = "relu", gated: bool = False, bias: bool = True, convolution: int = 0,
    qk_norm: bool = False, tied: bool = True, max_len: int = 512,
) -> Spec:  # fmt: skip
    """A model of any family; the defaults give a small one with pre-norm and rotary positions.

    >>> from_sizes("decoder-only", layers=2).decoder.layers[0].repeat
    2

    Args:
        family: Which stacks the model has.
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.
        dropout: Fraction of activations set to zero in training.
        norm: Kind of norm.
        placement: "pre": norm before each branch; "post": after the sum (2017).
        positions: Position encoding.
        activation: Activation of the feed-forward.
        gated: A gate in the feed-forward (SwiGLU with silu).
        bias: Biases in linear maps.
        convolution: Width of a convolution that replaces attention in the first layer; 0: none.
        qk_norm: RMSNorm on queries and keys, which allows higher learning rates.
        tied: The output layer shares the embedding table.
        max_len: Longest sequence in tokens.

    Returns:
        The spec.

    Raises:
        QkvError: d_model does not divide into n_heads.
    """
    d_head = head_width(d_model, n_heads)
    heads = Attention(n_heads, n_heads, d_head, bias=bias, out_bias=bias, qk_norm=qk_norm)
    feed_forward = (Gated if gated else Dense)(d_ff, activation, bias)
    layer = Layer(heads, feed_forward, Norm(norm, placement), repeat=layers)
    stack = _after_convolution(layer, convolution) if convolution else (layer,)
    final_norm = placement == "pre"  # a pre-norm residual stream is not normalized at its end
    encoder = Stack(stack, final_norm=final_norm) if family != "decoder-only" else None
    # no other software can express norms on both sides of cross-attention
    cross = replace(heads, qk_norm=False) if encoder else None
    decoder_layers = tuple(replace(layer, cross=cross) for layer in stack)
    decoder = Stack(decoder_layers, causal=True, final_norm=final_norm)
    return Spec(
        vocab_size, d_model, encoder, decoder if family != "encoder-only" else None,
        POSITIONS[positions], LmHead(tied), scaled_embedding=True, max_len=max_len, dropout=dropout,
    )  # fmt: skip


def head_width(d_model: int, n_heads: int) -> int:
    """d_model / n_heads; an error if that is not an integer."""
    for name, size in (("d_model", d_model), ("n_heads", n_heads)):
        SIZE_LIMIT.check(f"model.{name}", size)
    if d_model % n_heads:
        good = [n for n in range(1, min(d_model, 4 * n_heads) + 1) if d_model % n == 0]
        wrong = _("{d_model} does not divide into {n_heads} heads",
                  d_model=d_model, n_heads=n_heads)
        raise QkvError("model.n_heads", wrong, _("use {good}", good=listed(good)))
    return d_model // n_heads


def _after_convolution(layer: Layer, width: int) -> tuple[Layer, ...]:
    """The first layer has a convolution instead of attention."""
    first = replace(layer, mixer=Convolution(width), repeat=1)
    rest = replace(layer, repeat=layer.repeat - 1)
    return (first, rest) if rest.repeat else (first,)


def encoder_decoder(
    vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int, dropout: float = 0.1
) -> Spec:
    """The encoder-decoder of 2017: post-norm, sinusoidal positions, ReLU, one embedding table.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.
        dropout: Fraction of activations set to zero in training.

    Returns:
        The spec.
    """
    return from_sizes("encoder-decoder", vocab_size, d_model, layers, n_heads, d_ff, dropout,
                      placement="post", positions="sinusoidal", max_len=1_024)


def decoder_only(
    vocab_size: int, d_model: int, layers: int, mixer: Mixer, feed_forward: FeedForward,
    eps: float = 1e-5,
) -> Spec:  # fmt: skip
    """Llama's decoder with any mixer and feed-forward: RMS pre-norm, RoPE, no biases.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks.
        mixer: The token mixer of each block, such as Attention.
        feed_forward: The feed-forward of each block.
        eps: Epsilon of the norms.

    Returns:
        The spec.
    """
    layer = Layer(mixer, feed_forward, Norm("rms", "pre", eps), repeat=layers)
    decoder = Stack((layer,), causal=True, final_norm=True)
    return Spec(vocab_size, d_model, decoder=decoder, head=LmHead(tied=False))


def encoder_only(vocab_size: int, d_model: int, layers: int, n_heads: int, d_ff: int) -> Spec:
    """BERT's encoder: post-norm, learned positions, exact GELU, a pooler.

    Args:
        vocab_size: Tokens of the vocabulary.
        d_model: Width of the residual stream.
        layers: Blocks in each stack.
        n_heads: Attention heads.
        d_ff: Width of the feed-forward.

    Returns:
        The spec.
    """
    heads = Attention(n_heads, n_heads, head_width(d_model, n_heads), bias=True, out_bias=True)
    norm = Norm("layer", "post", 1e-12)
    layer = Layer(heads, Dense(d_ff, "gelu", bias=True), norm, repeat=layers)
    encoder = Stack((layer,), embed_norm=True)
    return Spec(vocab_size, d_model, encoder, None, Learned(), Pooler(),
                token_types=2, max_len=512, dropout=0.1)
