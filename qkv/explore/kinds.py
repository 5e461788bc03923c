"""The kinds of steps of one model: their words, with the formulas and the textbook code of the choices it makes.

In: a spec. Out: for the page, kind -> title, sentence, formula, code; and the code itself, read from qkv/textbook.
Told in docs/explore.md, "The walk".
"""

import inspect
from functools import cache
from importlib import import_module
from textwrap import dedent
from typing import Any

from qkv.explore.words import WORDS, Words
from qkv.messages import Both
from qkv.model import spec as s

NORMS = {
    "layer": ("norm(x) = g · (x − mean) / √(var + ε) + b", "norms:LayerNorm"),
    "rms": ("norm(x) = g · x / √(mean(x²) + ε)", "norms:RMSNorm"),
    "batch": ("norm(x) = g · (x − mean_batch) / √(var_batch + ε) + b", "norms:BatchNorm"),
}
POSITIONS = {
    "sinusoidal": (
        "x = x + PE, PE(p, 2i) = sin(p / 10000^(2i/d)), PE(p, 2i+1) = cos(…)",
        "positions:sinusoidal",
    ),
    "learned": ("x = x + P[place]", "positions:LearnedPositions"),
}
POOLINGS = {
    "mean": ("s = mean of the token vectors", "pooling:mean_pooling"),
    "cls": ("s = vector of the first token", "pooling:cls_pooling"),
    "max": ("s = largest of each component", "pooling:max_pooling"),
}


def kinds_of(spec: s.Spec, pooling: str) -> dict[str, Words]:
    """Every kind with the words that are true of this model."""
    layers = [layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.layers]
    known = dict(WORDS)
    norm, feed_forward = layers[-1].norm, layers[-1].feed_forward
    for kind in ("norm", "final_norm", "embed_norm"):
        known[kind] = told(kind, *NORMS[norm.kind])
    known["residual"] = told("residual", *residual_of(norm))
    known["pooling"] = told("pooling", *POOLINGS.get(pooling, POOLINGS["mean"]))
    if spec.positions.kind in POSITIONS:
        known["positions"] = told("positions", *POSITIONS[spec.positions.kind])
    if isinstance(spec.positions, s.Rotary) and spec.positions.pairs == "adjacent":
        known["rotation"] = told("rotation", WORDS["rotation"].formula, "positions:rotate_pairs")
    if isinstance(feed_forward, s.Dense | s.Gated):
        known |= feed_forward_words(feed_forward)
    if not spec.scaled_embedding:
        known["embedding"] = told("embedding", "x = E[id]", "decoder_only:DecoderOnly.forward")
    return known


def residual_of(norm: s.Norm) -> tuple[str, str]:
    if norm.place == "pre":
        return "x = x + branch(norm(x))", "decoder_only:PreNorm"
    return "x + branch(x), then norm", "transformer:PostNorm"


def feed_forward_words(part: s.Dense | s.Gated) -> dict[str, Words]:
    gated = isinstance(part, s.Gated)
    code = "feed_forward:GatedFeedForward" if gated else "feed_forward:FeedForward"
    act = part.activation.removesuffix("_tanh").replace("relu2", "relu²")
    bend = f"{act}(gate) · up" if gated else f"{act}(up)"
    bends = f"feed_forward:{'relu_squared' if part.activation == 'relu2' else part.activation}"
    return {
        "up": told("up", "up = x W_up", code),
        "activation": told("activation", bend, bends),
        "down": told("down", f"({bend}) · W_down", code),
    }


def told(kind: str, formula: str, code: str | None) -> Words:
    return WORDS[kind]._replace(formula=formula, code=code)


def as_both(words: Both) -> dict[str, str]:
    return {"en": words.en, "zh": words.zh}


def kinds_for_page(known: dict[str, Words]) -> dict[str, Any]:
    return {
        kind: {
            "title": as_both(one.title),
            "text": as_both(one.text),
            "formula": one.formula,
            "code": one.code,
        }
        for kind, one in known.items()
    }


def code_for_page(known: dict[str, Words]) -> dict[str, Any]:
    """The source text of every piece of textbook code that is named."""
    return {
        name: source_of(name) for name in sorted({one.code for one in known.values() if one.code})
    }


@cache
def source_of(name: str) -> dict[str, str]:
    """A function, class or method of qkv.textbook: source_of("attention:softmax")."""
    module_name, _, path = name.partition(":")
    found: Any = import_module(f"qkv.textbook.{module_name}")
    for part in path.split("."):
        found = getattr(found, part)
    return {
        "file": f"qkv/textbook/{module_name}.py",
        "name": path,
        "source": dedent(inspect.getsource(found)),
    }
