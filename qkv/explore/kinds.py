"""Kinds of steps of one model: titles, texts, formulas and the textbook code of its architecture.

See docs/explore.md.
"""

import inspect
from functools import cache
from importlib import import_module
from textwrap import dedent
from typing import Any

from qkv.explore.step_texts import STEP_TEXTS, StepText
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
    "learned": ("x = x + P[position]", "positions:LearnedPositions"),
}
POOLINGS = {
    "mean": ("s = mean of the token vectors", "pooling:mean_pooling"),
    "cls": ("s = vector of the first token", "pooling:cls_pooling"),
    "max": ("s = maximum of each component", "pooling:max_pooling"),
}


def kinds_of(spec: s.Spec, pooling: str) -> dict[str, StepText]:
    """Every kind of step, with the formula and code of this model."""
    layers = [layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.layers]
    kinds = dict(STEP_TEXTS)
    norm, feed_forward = layers[-1].norm, layers[-1].feed_forward
    for kind in ("norm", "final_norm", "embed_norm"):
        kinds[kind] = with_formula(kind, *NORMS[norm.kind])
    kinds["residual"] = with_formula("residual", *residual_of(norm))
    kinds["pooling"] = with_formula("pooling", *POOLINGS.get(pooling, POOLINGS["mean"]))
    if spec.positions.kind in POSITIONS:
        kinds["positions"] = with_formula("positions", *POSITIONS[spec.positions.kind])
    if isinstance(spec.positions, s.Rotary) and spec.positions.interleaved:
        kinds["rotation"] = with_formula(
            "rotation", STEP_TEXTS["rotation"].formula, "positions:rotate_pairs"
        )
    if isinstance(feed_forward, s.Dense | s.Gated):
        kinds |= feed_forward_texts(feed_forward)
    if not spec.scaled_embedding:
        kinds["embedding"] = with_formula(
            "embedding", "x = E[id]", "decoder_only:DecoderOnly.forward"
        )
    return kinds


def residual_of(norm: s.Norm) -> tuple[str, str]:
    if norm.placement == "pre":
        return "x = x + branch(norm(x))", "decoder_only:PreNorm"
    return "x + branch(x), then norm", "transformer:PostNorm"


def feed_forward_texts(spec: s.Dense | s.Gated) -> dict[str, StepText]:
    gated = isinstance(spec, s.Gated)
    code = "feed_forward:GatedFeedForward" if gated else "feed_forward:FeedForward"
    act = spec.activation.removesuffix("_tanh").replace("relu2", "relu²")
    formula = f"{act}(gate) · up" if gated else f"{act}(up)"
    activation = f"feed_forward:{'relu_squared' if spec.activation == 'relu2' else spec.activation}"
    return {
        "up": with_formula("up", "up = x W_up", code),
        "activation": with_formula("activation", formula, activation),
        "down": with_formula("down", f"({formula}) · W_down", code),
    }


def with_formula(kind: str, formula: str, code: str | None) -> StepText:
    return STEP_TEXTS[kind]._replace(formula=formula, code=code)


def as_both(text: Both) -> dict[str, str]:
    return {"en": text.en, "zh": text.zh}


def kinds_for_page(kinds: dict[str, StepText]) -> dict[str, Any]:
    return {
        kind: {
            "title": as_both(text.title),
            "text": as_both(text.text),
            "formula": text.formula,
            "code": text.code,
        }
        for kind, text in kinds.items()
    }


def code_for_page(kinds: dict[str, StepText]) -> dict[str, Any]:
    """The source of the textbook code of every kind."""
    return {
        name: source_of(name)
        for name in sorted({text.code for text in kinds.values() if text.code})
    }


@cache
def source_of(name: str) -> dict[str, str]:
    """A function, class or method of qkv.textbook: source_of("attention:softmax")."""
    module_name, _, path = name.partition(":")
    target: Any = import_module(f"qkv.textbook.{module_name}")
    for part in path.split("."):
        target = getattr(target, part)
    return {
        "file": f"qkv/textbook/{module_name}.py",
        "name": path,
        "source": dedent(inspect.getsource(target)),
    }
