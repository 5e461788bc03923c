"""What a person switches off or swaps, for one pass; then the model is as it was.

In: edits as strings, such as "head:decoder.0.attn.3". Out: the model with a head silent, a branch adding nothing, or
positions untold while the block lasts; swaps change the ids. Told in docs/explore.md, "Try things".
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qkv.explore.problem import Problem
from qkv.model.explained import put
from qkv.model.positions import NoPositions
from qkv.model.transformer import Transformer

PARTS = ("attn", "cross", "ffn")
MOST_EDITS = 256  # at once


@dataclass(frozen=True, order=True)
class Edit:
    """One change: its kind and its place, such as ("head", ("decoder", "0", "attn", "3"))."""

    kind: str
    place: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{'.'.join(self.place)}"


def read_edits(model: Transformer, given: Iterable[str]) -> tuple[Edit, ...]:
    """The edits that these strings name, in order and each once; what this model does not have is a mistake."""
    given, edits = list(given), []
    if len(given) > MOST_EDITS:
        raise Problem(
            422,
            "{n_given} edits are too many; at most {most_edits}.",
            n_given=len(given),
            most_edits=MOST_EDITS,
        )
    for one in given:
        kind, _, place = one.partition(":")
        edit = Edit(kind, tuple(place.split(".")))
        if not fits(model, edit):
            raise Problem(422, "There is no '{one}' to change in this model.", one=shortened(one))
        edits.append(edit)
    return tuple(sorted(set(edits)))


def shortened(text: str, limit: int = 60) -> str:
    """At most so many characters of what a person has sent."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def fits(model: Transformer, edit: Edit) -> bool:
    """Whether the model has what the edit speaks of; a swap is checked where the ids are known."""
    match edit.kind, edit.place:
        case "head", (stack, layer, part, head):
            n_heads = heads_of(branch_of(model, stack, layer, part))
            return number(head) < n_heads
        case "layer", (stack, layer):
            return block_of(model, stack, layer) is not None
        case "layer", (stack, layer, part):
            return branch_of(model, stack, layer, part) is not None
        case "positions", (stack,):
            return stack in ("encoder", "decoder") and getattr(model, stack) is not None
        case "swap", (side, place, id):
            return side in ("source", "target") and number(place) < 1 << 30 and number(id) < 1 << 30
    return False


def number(text: str) -> int:
    """A plain whole number; anything else is too large to be one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 1 << 30


def block_of(model: Transformer, stack: str, layer: str) -> nn.Module | None:
    """A layer of the model, if it has that one."""
    layers = (
        getattr(model, stack).layers
        if stack in ("encoder", "decoder") and getattr(model, stack)
        else []
    )
    return layers[number(layer)] if number(layer) < len(layers) else None


def branch_of(model: Transformer, stack: str, layer: str, part: str) -> nn.Module | None:
    """What a part of a layer adds to the stream, if there is such a part."""
    block = block_of(model, stack, layer)
    residual = getattr(block, part, None) if part in PARTS else None
    return None if residual is None else residual.branch


def heads_of(branch: nn.Module | None) -> int:
    """How many heads an attention joins; 0 for what is no attention."""
    kind: Any = getattr(branch, "heads", None) or getattr(branch, "latent", None)
    return kind.n_heads if kind is not None else 0


@contextmanager
def edited(model: Transformer, edits: Sequence[Edit]) -> Iterator[None]:
    """The model with these edits while the block lasts; no hook and no module stays behind."""
    with ExitStack() as put_back:
        for edit in edits:
            match edit.kind, edit.place:
                case "head", (stack, layer, part, head):
                    put_back.callback(
                        silence(branch_of(model, stack, layer, part), int(head)).remove
                    )
                case "layer", (stack, layer, *part):
                    for name in part or PARTS:
                        branch = branch_of(model, stack, layer, name)
                        if branch is not None:
                            put_back.callback(branch.register_forward_hook(nothing).remove)
                case "positions", (stack,):
                    put_back.callback(
                        put, model, f"{stack}.positions", getattr(model, stack).positions
                    )
                    put(model, f"{stack}.positions", NoPositions())
        yield


def silence(branch: Any, head: int) -> Any:
    """The head's columns of what o_proj reads are zeros: the same as zeroing these columns of its weight."""
    width = branch.o_proj.in_features // heads_of(branch)

    def without(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        joined = given[0].clone()  # (batch, query, heads * d_head)
        joined[..., head * width : (head + 1) * width] = 0
        return (joined,)

    return branch.o_proj.register_forward_pre_hook(without)


def nothing(module: nn.Module, given: Any, output: Tensor) -> Tensor:
    """A branch that adds nothing to the stream."""
    return torch.zeros_like(output)


def swapped(ids: Sequence[int], side: str, edits: Sequence[Edit], vocab_size: int) -> list[int]:
    """The ids of this side with its swaps made."""
    ids = list(ids)
    for edit in edits:
        if edit.kind == "swap" and edit.place[0] == side:
            place, id = int(edit.place[1]), int(edit.place[2])
            if place >= len(ids) or id >= vocab_size:
                raise Problem(
                    422,
                    "Token {place} cannot be swapped for {id}: there are {n_ids} tokens, and {vocab_size} words.",
                    place=place,
                    id=id,
                    n_ids=len(ids),
                    vocab_size=vocab_size,
                )
            ids[place] = id
    return ids
