"""Kinds of steps of one model: titles, texts, formulas and the textbook code of its architecture.

See docs/guides/inspect.md.
"""

import inspect
from functools import cache
from importlib import import_module
from operator import attrgetter
from textwrap import dedent

from qkv.explore.explored_model import stacks_of
from qkv.explore.serialize import JsonObject
from qkv.explore.step_texts import STEP_TEXTS, StepText
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
    "learned": ("x = x + P[position]", "positions:LearnedPositions"),
}
POOLINGS = {
    "mean": ("s = mean of the token vectors", "pooling:mean_pooling"),
    "cls": ("s = vector of the first token", "pooling:cls_pooling"),
    "max": ("s = maximum of each component", "pooling:max_pooling"),
}


RESIDUALS = {
    "pre": ("x = x + branch(norm(x))", "decoder_only:PreNorm"),
    "post": ("x + branch(x), then norm", "transformer:PostNorm"),
}


def kinds_of(spec: s.Spec, pooling: str) -> dict[str, StepText]:
    """Every kind of step, with the formula and code of this model."""
    last = list(stacks_of(spec).values())[-1].layers[-1]
    texts = dict.fromkeys(("norm", "final_norm", "embed_norm"), NORMS[last.norm.kind])
    texts["residual"] = RESIDUALS[last.norm.placement]  # without residuals no step is shown
    texts["pooling"] = POOLINGS.get(pooling, POOLINGS["mean"])
    if spec.positions.kind in POSITIONS:
        texts["positions"] = POSITIONS[spec.positions.kind]
    if isinstance(spec.positions, s.Rotary) and spec.positions.interleaved:
        texts["rotation"] = STEP_TEXTS["rotation"].formula, "positions:rotate_pairs"
    if isinstance(last.feed_forward, s.Dense | s.Gated):
        texts |= feed_forward_texts(last.feed_forward)
    if not spec.scaled_embedding:
        texts["embedding"] = "x = E[id]", "decoder_only:DecoderOnly.forward"
    return STEP_TEXTS | {
        kind: STEP_TEXTS[kind]._replace(formula=formula, code=code)
        for kind, (formula, code) in texts.items()
    }


def feed_forward_texts(spec: s.Dense | s.Gated) -> dict[str, tuple[str, str]]:
    """Formula and code of the steps of a feed-forward network."""
    gated = isinstance(spec, s.Gated)
    code = "feed_forward:GatedFeedForward" if gated else "feed_forward:FeedForward"
    act = spec.activation.removesuffix("_tanh").replace("relu2", "relu²")
    formula = f"{act}(gate) · up" if gated else f"{act}(up)"
    activation = spec.activation.replace("relu2", "relu_squared")
    return {
        "up": ("up = x W_up", code),
        "activation": (formula, f"feed_forward:{activation}"),
        "down": (f"({formula}) · W_down", code),
    }


def kinds_for_page(kinds: dict[str, StepText]) -> JsonObject:
    return {
        kind: text._asdict() | {"title": text.title._asdict(), "text": text.text._asdict()}
        for kind, text in kinds.items()
    }


def code_for_page(kinds: dict[str, StepText]) -> JsonObject:
    """The source of the textbook code of every kind."""
    names = {text.code for text in kinds.values() if text.code}
    return {name: source_of(name) for name in sorted(names)}


@cache
def source_of(name: str) -> dict[str, str]:
    """A function, class or method of qkv.textbook: source_of("attention:softmax")."""
    module_name, _, path = name.partition(":")
    target = attrgetter(path)(import_module(f"qkv.textbook.{module_name}"))
    return {
        "file": f"qkv/textbook/{module_name}.py",
        "name": path,
        "source": dedent(inspect.getsource(target)),
    }
