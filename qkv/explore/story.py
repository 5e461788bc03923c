"""The walk: one pass as an ordered list of steps, from the text to the next token.

In: a pass. Out: the story the page tells: sides with their tokens, chapters, steps with shapes and the names of their
numbers, and which attention there is to see. Told in docs/explore.md, "The walk".
"""

from collections.abc import Iterator
from typing import Any

import torch

from qkv.explore.kinds import as_both
from qkv.explore.passes import Pass
from qkv.explore.shown import (
    Place,
    Shown,
    Step,
    attention_steps,
    feed_forward_steps,
    sublayer_steps,
)
from qkv.messages import both
from qkv.model import spec as s
from qkv.model.head import LmHead

SIDE_OF = {"encoder": "source", "decoder": "target"}
PREDICT_COST = 3e9  # multiplications that guessing the next token at every place may take when a text is opened

SIX = {  # the six steps of translation
    "encode": both("The encoder gives every source token a first vector"),
    "attend": both("Self-attention gathers the meaning of all tokens into each"),
    "repeat": both("The encoder repeats this, layer by layer"),
    "decode": both("The decoder looks at what it has said so far"),
    "cross": both("Cross-attention: the decoder looks at the source"),
    "choose": both("The decoder repeats this, and chooses the next token"),
}
CHAPTERS = {
    "enter": both("From text to vectors"),
    "attend": both("The first layer: looking"),
    "think": both("The first layer: thinking"),
    "repeat": both("The other layers"),
    "choose": both("The next token"),
    "pool": both("One vector for the sentence"),
}
ATTENTION = {
    "encoder": both("The source looks at itself"),
    "decoder": both("The decoder looks at its past"),
    "cross": both("The decoder looks at the source"),
}


def tell(one: Pass) -> dict[str, Any]:
    """The story of a pass, as JSON."""
    steps = all_steps(one)
    chapters = [chapter_of(one, step) for step in steps]
    return {
        "id": one.id,
        "text": one.text,
        "edits": [str(edit) for edit in one.edits],
        "family": one.subject.family,
        "sides": sides_and_guesses(one),
        "said": said_of(one),
        "chapters": chapters_of(one, chapters),
        "steps": [as_json(step, chapter) for step, chapter in zip(steps, chapters, strict=True)],
        "attention": attention_of(one),
        "positions": len(one.ids[one.end]) if has_logits(one) else 0,
    }


def as_json(step: Step, chapter: str) -> dict[str, Any]:
    return {
        "key": step.key,
        "kind": step.kind,
        "stack": step.stack,
        "layer": step.layer,
        "part": step.part,
        "chapter": chapter,
        "tensors": [tensor.as_json() for tensor in step.tensors],
        "note": None,
    }


# ---- steps ----------------------------------------------------------------------------------------------------------


def all_steps(one: Pass) -> list[Step]:
    """Every step of the pass, in order."""
    spec = one.subject.model.spec
    stacks = [
        (name, stack)
        for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder))
        if stack
    ]
    steps = []
    for name, stack in stacks:
        steps += [
            *enter_steps(one, name, stack),
            *layer_steps(one, name, stack),
            *leave_steps(one, name, stack),
        ]
    return [*steps, *end_steps(one)]


def enter_steps(one: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """Tokens, ids, embeddings, positions."""
    spec, side = one.subject.model.spec, SIDE_OF[name]
    length = len(one.ids[side])

    def step(kind: str, scale: str = "signed") -> Step:
        shown = Shown(
            f"{name}.{kind}",
            kind,
            f"={name}.{kind}",
            (length, spec.d_model),
            ("token", "d_model"),
            {"token": side},
            scale,
        )
        return Step(f"{name}.{kind}", kind, name, None, "embed", (shown,))

    yield Step(f"{name}.tokens", "tokens", name, None, "embed")
    ids = Shown(f"{name}.ids", "ids", f"={name}.ids", (length,), ("token",), {"token": side}, "id")
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


def layer_steps(one: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """Layer by layer: attention, cross-attention where there is one, feed-forward."""
    spec = one.subject.model.spec
    own = SIDE_OF[name], len(one.ids[SIDE_OF[name]])
    turned = isinstance(spec.positions, s.Rotary)
    for number, layer in enumerate(stack.each_layer()):
        place = Place(name, number, "attn", own, own, spec.d_model)
        yield from sublayer_steps(place, attention_steps(place, layer.mixer, turned), layer.norm)
        if layer.cross is not None:
            place = Place(
                name, number, "cross", own, ("source", len(one.ids["source"])), spec.d_model
            )
            yield from sublayer_steps(
                place, attention_steps(place, layer.cross, turned=False), layer.norm
            )
        place = Place(name, number, "ffn", own, own, spec.d_model)
        yield from sublayer_steps(
            place, list(feed_forward_steps(place, layer.feed_forward)), layer.norm
        )


def leave_steps(one: Pass, name: str, stack: s.Stack) -> Iterator[Step]:
    """The last norm, and what the encoder hands over."""
    side, width = SIDE_OF[name], one.subject.model.spec.d_model
    last = (
        {"translator": "memory", "embedder": "vectors"}.get(one.subject.family)
        if name == "encoder"
        else None
    )
    for kind in [*(["final_norm"] if stack.final_norm else []), *([last] if last else [])]:
        shown = Shown(
            f"{name}.{kind}",
            kind,
            f"={name}.end",
            (len(one.ids[side]), width),
            ("token", "d_model"),
            {"token": side},
        )
        yield Step(f"{name}.{kind}", kind, name, None, "end", (shown,))


def end_steps(one: Pass) -> Iterator[Step]:
    """Logits and the next token; for an embedder the sentence vector."""
    spec, side = one.subject.model.spec, one.end
    if one.subject.family == "embedder":
        for kind in ("pooling", "sentence") if one.subject.pooling.normalize else ("pooling",):
            shown = Shown(kind, kind, f"={kind}", (spec.d_model,), ("d_model",))
            yield Step(kind, kind, None, None, "pool", (shown,))
    if has_logits(one):
        shown = Shown(
            "logits",
            "logits",
            "=logits",
            (len(one.ids[side]), spec.vocab_size),
            ("token", "vocab"),
            {"token": side},
        )
        yield Step("logits", "logits", None, None, "end", (shown,))
        yield Step("next", "next", None, None, "end")


def has_logits(one: Pass) -> bool:
    return isinstance(one.subject.model.lm_head, LmHead)


# ---- chapters -------------------------------------------------------------------------------------------------------


def chapter_of(one: Pass, step: Step) -> str:
    """Where a step stands in the telling."""
    if one.subject.family == "translator":
        return six_of(step)
    if step.part == "pool":
        return "pool"
    if step.part == "embed":
        return "enter"
    if step.layer is None:
        return "choose" if step.kind in ("logits", "next") or step.stack == "decoder" else "pool"
    return "repeat" if step.layer > 0 else "think" if step.part == "ffn" else "attend"


def six_of(step: Step) -> str:
    """Which of the six steps of translation this one belongs to."""
    if step.stack == "encoder":
        return "encode" if step.part == "embed" else "attend" if step.layer == 0 else "repeat"
    if step.stack is None or step.layer is None:
        return "decode" if step.part == "embed" else "choose"
    if step.layer > 0:
        return "choose"
    return "decode" if step.part == "attn" else "cross"


def chapters_of(one: Pass, of_steps: list[str]) -> list[dict[str, Any]]:
    """The chapters that occur, in order, each with the number of its first step."""
    titles = SIX if one.subject.family == "translator" else CHAPTERS
    present = [key for key in titles if key in of_steps]
    return [
        {"key": key, "number": number, "title": as_both(titles[key]), "first": of_steps.index(key)}
        for number, key in enumerate(sorted(present, key=of_steps.index), 1)
    ]


# ---- sides and attention --------------------------------------------------------------------------------------------


def sides_of(one: Pass) -> dict[str, Any]:
    """The tokens and words of each side."""
    typed = "source" if "source" in one.ids else "target"
    return {
        side: one.subject.side(ids, side, one.text if side == typed else None)
        for side, ids in one.ids.items()
    }


def sides_and_guesses(one: Pass) -> dict[str, Any]:
    """The same, and what the model would say after each token of the decoder's side."""
    sides = sides_of(one)
    if "target" in sides:
        sides["target"] |= predicted(one)
    return sides


def predicted(one: Pass) -> dict[str, Any]:
    """The likeliest next token after each place; None where that would take long."""
    model, stream = one.subject.model, one.streams["decoder"]
    if (
        not has_logits(one)
        or stream.shape[1] * model.spec.vocab_size * model.spec.d_model > PREDICT_COST
    ):
        return {"predicted": None, "predicted_ids": None, "predicted_p": None}
    with one.running():
        chances = model.logits(stream[0]).softmax(dim=-1)  # (length, vocab)
        p, ids = torch.max(chances, dim=-1)
    return {
        "predicted": one.subject.names(ids.tolist(), "target"),
        "predicted_ids": ids.tolist(),
        "predicted_p": p.tolist(),
    }


def said_of(one: Pass) -> dict[str, Any] | None:
    """The translation, as text."""
    return None if one.said is None else {"text": one.subject.text_of(one.said)}


def attention_of(one: Pass) -> list[dict[str, Any]]:
    """Which attention there is to see: of each kind the layers that have it, with their heads."""
    spec, found = one.subject.model.spec, []
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        layers = list(enumerate(stack.each_layer())) if stack else []
        own = [
            (n, layer.mixer.n_heads)
            for n, layer in layers
            if isinstance(layer.mixer, s.Heads | s.Latent)
        ]
        cross = [(n, layer.cross.n_heads) for n, layer in layers if layer.cross is not None]
        sides = SIDE_OF[name], SIDE_OF[name]
        found += [(name, sides, own), ("cross", ("target", "source"), cross)]
    guided = one.subject.alignment
    return [
        {
            "name": name,
            "title": as_both(ATTENTION[name]),
            "rows": rows,
            "columns": columns,
            "layers": [{"layer": n, "heads": heads} for n, heads in layers],
            "guided": guided._asdict() if guided and name == "cross" else None,
        }
        for name, (rows, columns), layers in found
        if layers
    ]
