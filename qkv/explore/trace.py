"""Trace of a pass as JSON: tokens of each side, ordered steps with tensor views, attention layers.

See docs/guides/inspect.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from qkv.explore.edits import branch_of, n_heads_of
from qkv.explore.explored_model import SIDE_OF, stacks_of
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.explore.stages import stage_of, stages_of
from qkv.explore.tensor_view import Step, Sublayer, TensorView, attention_steps, feed_forward_steps
from qkv.messages import Both, both
from qkv.model import spec as s

MAX_PREDICTION_MACS = 3e9  # for predicting the next token at every position when a text is opened


class AttentionKind(NamedTuple):
    """Title of a kind of attention, its modules, and the sides of its queries and keys."""

    title: Both
    stack: str
    part: str
    rows: str
    columns: str


ATTENTION = {
    "encoder": AttentionKind(both("Encoder self-attention"), "encoder", "attn", "source", "source"),
    "decoder": AttentionKind(both("Decoder self-attention"), "decoder", "attn", "target", "target"),
    "cross": AttentionKind(both("Cross-attention"), "decoder", "cross", "target", "source"),
}


def make_trace(pass_: Pass) -> JsonObject:
    """The trace of a pass, as JSON."""
    steps, family, generated = all_steps(pass_), pass_.explored.family, pass_.generated
    stages = [stage_of(family, step) for step in steps]
    return {
        "id": pass_.id,
        "text": pass_.text,
        "edits": [str(edit) for edit in pass_.edits],
        "family": family,
        "sides": sides_with_predictions(pass_),
        "generated": None if generated is None else {"text": pass_.explored.text_of(generated)},
        "stages": stages_of(family, stages),
        "steps": [as_json(step, stage) for step, stage in zip(steps, stages, strict=True)],
        "attention": attention_kinds(pass_),
        "positions": len(pass_.ids[pass_.logits_side]) if pass_.explored.has_logits else 0,
    }


def as_json(step: Step, stage: str) -> JsonObject:
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
    steps = []
    for name, stack in stacks_of(pass_.spec).items():
        steps += [
            *input_steps(pass_, name, stack),
            *layer_steps(pass_, name, stack),
            *output_steps(pass_, name, stack),
        ]
    return [*steps, *head_steps(pass_)]


def stream_step(pass_: Pass, stack: str, kind: str, part: str, name: str) -> Step:
    """A step outside of the layers with one tensor, (token, d_model)."""
    side = SIDE_OF[stack]
    shape = (len(pass_.ids[side]), pass_.spec.d_model)
    view = TensorView(kind, f"={name}", shape, ("token", "d_model"), {"token": side})
    return Step(kind, stack, None, part, (view,))


def input_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """Tokens, ids, embeddings, positions: the input of the first layer."""
    spec = pass_.spec
    yield Step("tokens", name, None, "embed")
    ids = stream_step(pass_, name, "ids", "embed", f"{name}.ids")
    (view,) = ids.tensors
    one_axis = replace(view, shape=view.shape[:1], axes=("token",), scale="id")
    yield replace(ids, tensors=(one_axis,))
    present = {
        "embedding": True,
        "scaled": spec.scaled_embedding,
        "type": spec.token_types and name == "encoder",
        "positions": spec.positions.kind in ("sinusoidal", "learned"),
        "embed_norm": stack.embed_norm,
    }
    yield from (
        stream_step(pass_, name, kind, "embed", f"{name}.{kind}")
        for kind in present
        if present[kind]
    )


def layer_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """The sublayers of every layer: attention, cross-attention, feed-forward network."""
    lengths = {side: (side, len(ids)) for side, ids in pass_.ids.items()}
    own, positions = lengths[SIDE_OF[name]], pass_.spec.positions.kind
    for number, layer in enumerate(stack.each_layer()):
        sublayer = partial(
            Sublayer, name, number, layer.norm, pass_.spec.d_model, own, layer.residual
        )
        attn, ffn = sublayer("attn", own), sublayer("ffn", own)
        yield from attn.with_residual(attention_steps(attn, layer.mixer, positions))
        if layer.cross is not None:
            cross = sublayer("cross", lengths["source"])
            yield from cross.with_residual(attention_steps(cross, layer.cross, "none"))
        if layer.feed_forward is not None:
            yield from ffn.with_residual(feed_forward_steps(ffn, layer.feed_forward))


def output_steps(pass_: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """The final norm, and the output of the encoder."""
    if stack.final_norm:
        yield stream_step(pass_, name, "final_norm", "output", f"{name}.norm")
    if name == "encoder":
        kind = "memory" if pass_.explored.family == "translator" else "vectors"
        yield stream_step(pass_, name, kind, "output", name)


def head_steps(pass_: Pass) -> Iterator[Step]:
    """Logits and the next token; for an embedder the sentence vector."""
    explored, spec, side = pass_.explored, pass_.spec, pass_.logits_side
    if explored.family == "embedder":
        for kind in ("pooling", "sentence") if explored.pooling.normalize else ("pooling",):
            view = TensorView(kind, f"={kind}", (spec.d_model,), ("d_model",))
            yield Step(kind, None, None, "pool", (view,))
    if explored.has_logits:
        shape, axes = (len(pass_.ids[side]), spec.vocab_size), ("token", "vocab")
        view = TensorView("logits", "=lm_head", shape, axes, {"token": side})
        yield Step("logits", None, None, "output", (view,))
        yield Step("next", None, None, "output")


# ---- sides and attention


def sides_of(pass_: Pass) -> JsonObject:
    """The tokens and words of each side."""
    input_side = "source" if "source" in pass_.ids else "target"
    return {
        side: pass_.explored.side(ids, side, pass_.text if side == input_side else None)
        for side, ids in pass_.ids.items()
    }


def sides_with_predictions(pass_: Pass) -> JsonObject:
    """The sides, with the most probable next token at each position of the decoder."""
    sides = sides_of(pass_)
    if "target" in sides:
        sides["target"] |= next_tokens(pass_)
    return sides


def next_tokens(pass_: Pass) -> JsonObject:
    """The most probable next token at each position; None if computing it would take long."""
    n_macs = len(pass_.ids["target"]) * pass_.spec.vocab_size * pass_.spec.d_model
    if not pass_.explored.has_logits or n_macs > MAX_PREDICTION_MACS:
        return dict.fromkeys(("predicted", "predicted_ids", "predicted_p"))
    p, ids = pass_.logits().softmax(dim=-1).max(dim=-1)  # (length,)
    return {
        "predicted": pass_.explored.display_separately(ids.tolist(), "target"),
        "predicted_ids": ids.tolist(),
        "predicted_p": p.tolist(),
    }


def attention_kinds(pass_: Pass) -> list[JsonObject]:
    """The kinds of attention, each with its layers and their numbers of heads."""
    guided = pass_.explored.alignment
    return [
        {
            "name": name,
            "title": kind.title._asdict(),
            "rows": kind.rows,
            "columns": kind.columns,
            "layers": [{"layer": n, "heads": heads} for n, heads in layers.items()],
            "guided": guided._asdict() if guided and name == "cross" else None,
        }
        for name, kind in ATTENTION.items()
        if (layers := attention_layers(pass_, name))
    ]


def attention_layers(pass_: Pass, name: str) -> dict[int, int]:
    """The number of heads of each layer with attention of this kind."""
    kind = ATTENTION[name]
    blocks = getattr(pass_.explored.stacks.get(kind.stack), "layers", ())
    heads = [n_heads_of(branch_of(block, kind.part)) for block in blocks]
    return {n: n_heads for n, n_heads in enumerate(heads) if n_heads}
