"""The numbers of a step, worked out when someone asks for them.

In: a pass and a tensor of its story. Out: that tensor, or some rows of it; what stands inside a layer comes from
running that layer again, explained. Told in docs/explore.md, "The walk".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.passes import Pass
from qkv.explore.problem import Problem
from qkv.explore.shown import Shown
from qkv.explore.story import SIDE_OF
from qkv.model.pooling import pool
from qkv.model.view import places_of

MOST_NUMBERS = 4_000_000


def fetch(one: Pass, shown: Shown, index: int | None = None, rows: slice | None = None) -> Tensor:
    """The tensor, one element of its first axis, or a few rows of what is left."""
    shape = shown.shape
    if index is not None:
        if len(shape) < 2 or not 0 <= index < shape[0]:
            raise Problem(
                422,
                "There is no element {index} in a tensor of shape {shape}.",
                index=index,
                shape=shape,
            )
        shape = shape[1:]
    if rows is not None:
        shape = (len(range(*rows.indices(shape[0]))), *shape[1:])
    refuse_many(shape)
    if shown.path == "=logits":
        return logits(one, rows if index is None else slice(index, index + 1))[
            0 if index is not None else slice(None)
        ]
    whole = whole_of(one, shown)
    part = whole if index is None else whole[index]
    return part if rows is None else part[rows]


def refuse_many(shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    if count > MOST_NUMBERS:
        raise Problem(
            413, "{count:,} numbers are too many at once; ask for fewer rows.", count=count
        )


def whole_of(one: Pass, shown: Shown) -> Tensor:
    """A tensor of the story in full."""
    if shown.path.startswith("="):
        return worked_out(one, shown.path[1:])
    block = ".".join(shown.path.lstrip("<").split(".")[:3])
    found = one.look(block)[shown.path]
    return found if shown.item is None else found[shown.item]


def worked_out(one: Pass, what: str) -> Tensor:
    """What no single module gives: what goes into the first layer, and what is made of the last."""
    name, _, kind = what.partition(".")
    if kind == "end":
        return one.streams[name][0]
    if kind:
        with one.running():
            return entering(one, name)[kind]
    pooled = sentence_vectors(one)
    return pooled[0] if what == "pooling" else pooled[1]


def entering(one: Pass, name: str) -> dict[str, Tensor]:
    """The ways of the ids into the first layer, stop by stop, each (length, d_model)."""
    model, ids = one.subject.model, one.row(SIDE_OF[name])
    stack = getattr(model, name)
    table = (
        model.source_embed if name == "encoder" and model.source_embed is not None else model.embed
    )
    stops = {"ids": ids[0], "embedding": table.weight[ids[0]]}
    x = stops["scaled"] = stops["embedding"] * model.scale
    if model.type_embed is not None and name == "encoder":
        x = stops["type"] = x + model.type_embed.weight[0]
    x = stops["positions"] = stack.positions(x[None], places_of(len(x), 0, None, x.device))[0]
    stops["embed_norm"] = stack.embed_norm(x)
    return stops


def logits(one: Pass, rows: slice | None = None) -> Tensor:
    """Scores over the vocabulary at these places, (rows, vocab)."""
    stream = one.streams["encoder" if one.end == "source" else "decoder"][0]
    with one.running():
        return one.subject.model.logits(stream if rows is None else stream[rows])


def sentence_vectors(one: Pass) -> tuple[Tensor, Tensor]:
    """The pooled vector, and the sentence vector, (d_model,) each: the same one where the model does not normalise."""
    rule = one.subject.pooling
    with one.running():
        pooled = pool(one.streams["encoder"], None, rule.pooling)[0]
        return pooled, F.normalize(pooled, dim=-1) if rule.normalize else pooled
