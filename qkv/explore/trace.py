"""Trace of a pass as JSON: tokens of each side, ordered steps with tensor views, attention layers.

See docs/explore.md.
"""

from collections.abc import Iterator
from typing import Any

import torch

from qkv.explore.kinds import as_both
from qkv.explore.passes import Pass
from qkv.explore.stages import stage_of, stages_of
from qkv.explore.tensor_view import (
    Step,
    Sublayer,
    TensorView,
    attention_steps,
    feed_forward_steps,
    sublayer_steps,
)
from qkv.messages import both
from qkv.model import spec as s
from qkv.model.head import LmHead

SIDE_OF = {"encoder": "source", "decoder": "target"}
MAX_PREDICTION_MACS = 3e9  # for predicting the next token at every position when a text is opened

ATTENTION = {
    "encoder": both("Encoder self-attention"),
    "decoder": both("Decoder self-attention"),
    "cross": both("Cross-attention"),
}


def make_trace(pass_: Pass) -> dict[str, Any]:
    """The trace of a pass, as JSON."""
    steps, family = all_steps(pass_), pass_.explored.family
    stages = [stage_of(family, step) for step in steps]
    return {
        "id": pass_.id,
        "text": pass_.text,
        "edits": [str(edit) for edit in pass_.edits],
        "family": family,
        "sides": sides_with_predictions(pass_),
        "generated": generated_text(pass_),
        "stages": stages_of(family, stages),
        "steps": [as_json(step, stage) for step, stage in zip(steps, stages, strict=True)],
        "attention": attention_kinds(pass_),
        "positions": len(pass_.ids[pass_.logits_side]) if has_logits(pass_) else 0,
    }


def as_json(step: Step, stage: str) -> dict[str, Any]:
    return {
        "key": step.key,
        "kind": step.kind,
        "stack": step.stack,
        "layer": step.layer,
        "part": step.part,
        "stage": stage,
        "tensors": [tensor.as_json() for tensor in step.tensors],
        "note": None,
    }


# ---- steps


def all_steps(pass_: Pass) -> list[Step]:
    """Every step of the pass, in order."""
    spec = pass_.explored.model.spec
    stacks = [
        (name, stack)
        for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        if stack
    ]
    steps = []
    for name, stack in stacks:
        steps += [
            *input_steps(pass_, name, stack),
            *layer_steps(pass_, name, stack),
            *output_steps(pass_, name, stack),
        ]
    return [*steps, *head_steps(pass_)]


def input_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """Tokens, ids, embeddings, positions: the input of the first layer."""
    spec, side = pass_.explored.model.spec, SIDE_OF[name]
    length = len(pass_.ids[side])

    def step(kind: str, scale: str = "signed") -> Step:
        view = TensorView(
            f"{name}.{kind}",
            kind,
            f"={name}.{kind}",
            (length, spec.d_model),
            ("token", "d_model"),
            {"token": side},
            scale,
        )
        return Step(f"{name}.{kind}", kind, name, None, "embed", (view,))

    yield Step(f"{name}.tokens", "tokens", name, None, "embed")
    ids = TensorView(
        f"{name}.ids", "ids", f"={name}.ids", (length,), ("token",), {"token": side}, "id"
    )
    yield Step(f"{name}.ids", "ids", name, None, "embed", (ids,))
    yield step("embedding")
    if spec.scaled_embedding:
        yield step("scaled")
    if spec.token_types and name == "encoder":
        yield step("type")
    if spec.positions.kind in ("sinusoidal", "learned"):
        yield step("positions")
    if stack.embed_norm:
        yield step("embed_norm")


def layer_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """The sublayers of every layer: attention, cross-attention, feed-forward network."""
    spec = pass_.explored.model.spec
    own = SIDE_OF[name], len(pass_.ids[SIDE_OF[name]])
    rotary = isinstance(spec.positions, s.Rotary)
    for number, layer in enumerate(stack.each_layer()):
        sublayer = Sublayer(name, number, "attn", own, own, spec.d_model)
        yield from sublayer_steps(
            sublayer, attention_steps(sublayer, layer.mixer, rotary), layer.norm
        )
        if layer.cross is not None:
            sublayer = Sublayer(
                name, number, "cross", own, ("source", len(pass_.ids["source"])), spec.d_model
            )
            yield from sublayer_steps(
                sublayer, attention_steps(sublayer, layer.cross, rotary=False), layer.norm
            )
        sublayer = Sublayer(name, number, "ffn", own, own, spec.d_model)
        yield from sublayer_steps(
            sublayer, list(feed_forward_steps(sublayer, layer.feed_forward)), layer.norm
        )


def output_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """The final norm, and the output of the encoder."""
    side, width = SIDE_OF[name], pass_.explored.model.spec.d_model
    last = (
        {"translator": "memory", "embedder": "vectors"}.get(pass_.explored.family)
        if name == "encoder"
        else None
    )
    for kind in [*(["final_norm"] if stack.final_norm else []), *([last] if last else [])]:
        view = TensorView(
            f"{name}.{kind}",
            kind,
            f"={name}.output",
            (len(pass_.ids[side]), width),
            ("token", "d_model"),
            {"token": side},
        )
        yield Step(f"{name}.{kind}", kind, name, None, "output", (view,))


def head_steps(pass_: Pass) -> Iterator[Step]:
    """Logits and the next token; for an embedder the sentence vector."""
    spec, side = pass_.explored.model.spec, pass_.logits_side
    if pass_.explored.family == "embedder":
        for kind in ("pooling", "sentence") if pass_.explored.pooling.normalize else ("pooling",):
            view = TensorView(kind, kind, f"={kind}", (spec.d_model,), ("d_model",))
            yield Step(kind, kind, None, None, "pool", (view,))
    if has_logits(pass_):
        view = TensorView(
            "logits",
            "logits",
            "=logits",
            (len(pass_.ids[side]), spec.vocab_size),
            ("token", "vocab"),
            {"token": side},
        )
        yield Step("logits", "logits", None, None, "output", (view,))
        yield Step("next", "next", None, None, "output")


def has_logits(pass_: Pass) -> bool:
    return isinstance(pass_.explored.model.lm_head, LmHead)


# ---- sides and attention


def sides_of(pass_: Pass) -> dict[str, Any]:
    """The tokens and words of each side."""
    input_side = "source" if "source" in pass_.ids else "target"
    return {
        side: pass_.explored.side(ids, side, pass_.text if side == input_side else None)
        for side, ids in pass_.ids.items()
    }


def sides_with_predictions(pass_: Pass) -> dict[str, Any]:
    """The sides, with the most probable next token at each position of the decoder."""
    sides = sides_of(pass_)
    if "target" in sides:
        sides["target"] |= next_tokens(pass_)
    return sides


def next_tokens(pass_: Pass) -> dict[str, Any]:
    """The most probable next token at each position; None if computing it would take long."""
    model, states = pass_.explored.model, pass_.final_states["decoder"]
    if (
        not has_logits(pass_)
        or states.shape[1] * model.spec.vocab_size * model.spec.d_model > MAX_PREDICTION_MACS
    ):
        return {"predicted": None, "predicted_ids": None, "predicted_p": None}
    with pass_.running():
        probs = model.logits(states[0]).softmax(dim=-1)  # (length, vocab)
        p, ids = torch.max(probs, dim=-1)
    return {
        "predicted": pass_.explored.display_separately(ids.tolist(), "target"),
        "predicted_ids": ids.tolist(),
        "predicted_p": p.tolist(),
    }


def generated_text(pass_: Pass) -> dict[str, Any] | None:
    """The translation, as text."""
    return None if pass_.generated is None else {"text": pass_.explored.text_of(pass_.generated)}


def attention_kinds(pass_: Pass) -> list[dict[str, Any]]:
    """The kinds of attention, each with its layers and their numbers of heads."""
    spec, kinds = pass_.explored.model.spec, []
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        layers = list(enumerate(stack.each_layer())) if stack else []
        own = [
            (n, layer.mixer.n_heads)
            for n, layer in layers
            if isinstance(layer.mixer, s.Attention | s.LatentAttention)
        ]
        cross = [(n, layer.cross.n_heads) for n, layer in layers if layer.cross is not None]
        sides = SIDE_OF[name], SIDE_OF[name]
        kinds += [(name, sides, own), ("cross", ("target", "source"), cross)]
    guided = pass_.explored.alignment
    return [
        {
            "name": name,
            "title": as_both(ATTENTION[name]),
            "rows": rows,
            "columns": columns,
            "layers": [{"layer": n, "heads": heads} for n, heads in layers],
            "guided": guided._asdict() if guided and name == "cross" else None,
        }
        for name, (rows, columns), layers in kinds
        if layers
    ]
