"""From the sizes in a recipe to a spec.

In: a preset's name, the path of a model.json, or a Shape; and the vocabularies that were learned. Out: the Spec to train.
Told in docs/training.md, "The model of a recipe".
"""

from dataclasses import replace
from pathlib import Path

from qkv.errors import QkvError
from qkv.language import say
from qkv.model.door import from_json
from qkv.model.presets import PRESETS, preset
from qkv.model.spec import (
    Convolution,
    Dense,
    Gated,
    Heads,
    Layer,
    Learned,
    LmHead,
    MaskedHead,
    NoPositions,
    Norm,
    Positions,
    Rotary,
    Sinusoidal,
    Spec,
    Stack,
)
from qkv.text.lines import read_text
from qkv.train.recipe import Shape


def translator_spec(model: str | Shape, vocab_size: int, source_vocab_size: int | None) -> Spec:
    """An encoder-decoder for these vocabularies; None for the source: one vocabulary for both sides."""
    spec = _from_shape(model) if isinstance(model, Shape) else _from_name(model)
    if spec.encoder is None or spec.decoder is None:
        wrong = say(f"'{model}' is no encoder-decoder", f"'{model}' 不是编码器-解码器")
        raise QkvError("model", wrong, say("translation needs both stacks, as in 'tiny'", "翻译需要两个栈，例如 'tiny'"))
    if spec.decoder.sees != "past":
        wrong = say(f"the decoder of '{model}' sees the future", f"'{model}' 的解码器能看到未来")
        raise QkvError("model", wrong, say('give its decoder "sees": "past"', '请让解码器 "sees": "past"'))
    return replace(spec, vocab_size=vocab_size, source_vocab_size=source_vocab_size)


def reader_spec(model: str | Shape, vocab_size: int, guesses: bool) -> Spec:
    """An encoder for this vocabulary; if it guesses masked tokens, with a head that names them."""
    spec = replace(_from_shape(model), decoder=None) if isinstance(model, Shape) else _from_name(model)
    if spec.encoder is None or spec.decoder is not None:
        wrong = say(f"'{model}' is no encoder alone", f"'{model}' 不是单独的编码器")
        raise QkvError("model", wrong, say("sentence vectors need one, as in 'minilm'", "句向量需要它，例如 'minilm'"))
    head = LmHead(model.tied) if isinstance(model, Shape) else MaskedHead()
    return replace(spec, vocab_size=vocab_size, head=head if guesses else None)


def writer_spec(model: str | Shape, vocab_size: int, context: int) -> Spec:
    """A decoder alone, for this vocabulary and windows of this many tokens."""
    if isinstance(model, Shape):
        both = _from_shape(model)
        assert both.encoder is not None
        spec = replace(both, encoder=None, decoder=replace(both.encoder, sees="past"))
    else:
        spec = _from_name(model)
    if spec.encoder is not None or spec.decoder is None or spec.decoder.sees != "past" or not isinstance(spec.head, LmHead):
        wrong = say(f"'{model}' is no language model", f"'{model}' 不是语言模型")
        raise QkvError("model", wrong, say("it needs a decoder alone, as in 'llama'", "需要只有解码器的模型，例如 'llama'"))
    return replace(spec, vocab_size=vocab_size, max_len=context)


def _from_name(name: str) -> Spec:
    if name in PRESETS or not name.endswith(".json"):
        return preset(name)
    path = Path(name)
    if not path.is_file():
        raise QkvError(path, say("no such file", "没有这个文件"), say("give a model.json or a preset", "请给 model.json 或预设名"))
    return from_json(read_text(path), str(path))


def _from_shape(shape: Shape) -> Spec:
    if shape.d_model % shape.n_heads:
        good = [str(n) for n in range(1, shape.d_model + 1) if shape.d_model % n == 0 and n <= 4 * shape.n_heads]
        wrong = say(f"{shape.d_model} does not divide into {shape.n_heads} heads", f"{shape.d_model} 无法分成 {shape.n_heads} 个头")
        raise QkvError("model.n_heads", wrong, say(f"use {', '.join(good)}", f"请用 {'、'.join(good)}"))
    head = shape.d_model // shape.n_heads
    heads = Heads(shape.n_heads, shape.n_heads, head, bias=shape.bias, out_bias=shape.bias, qk_norm=shape.qk_norm)
    cross = replace(heads, qk_norm=False)  # no other software can express norms on both sides of cross-attention
    wide = (Gated if shape.gated else Dense)(shape.d_ff, shape.activation, shape.bias)
    layer = Layer(heads, wide, Norm(shape.norm, shape.place), repeat=shape.layers)
    layers = (layer,) if not shape.convolution else _after_a_convolution(layer, shape.convolution)
    last = shape.place == "pre"  # a pre-norm stream is not yet normalised when it leaves the last layer
    return Spec(
        vocab_size=1, d_model=shape.d_model, positions=_positions(shape), head=LmHead(shape.tied), scaled_embedding=True,
        encoder=Stack(layers, "all", last), decoder=Stack(tuple(replace(one, cross=cross) for one in layers), "past", last),
        max_len=shape.max_len, dropout=shape.dropout,
    )  # fmt: skip


def _after_a_convolution(layer: Layer, width: int) -> tuple[Layer, ...]:
    """The first layer sees its nearest neighbours at once, which attention would first have to find; the others attend."""
    first, rest = replace(layer, mixer=Convolution(width), repeat=1), replace(layer, repeat=layer.repeat - 1)
    return (first, rest) if rest.repeat else (first,)


def _positions(shape: Shape) -> Positions:
    match shape.positions:
        case "sinusoidal": return Sinusoidal()
        case "learned": return Learned()
        case "rotary": return Rotary()
        case "none": return NoPositions()
