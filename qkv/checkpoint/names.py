"""Their names and ours: one table per family, read forwards to import and backwards to export.

In: weights under their names. Out: the same numbers under ours, or the other way round; joined, turned or stacked
weights are small rules in the table. Told in docs/convert.md, "Names".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.model.spec import Spec

# In a pattern, {i} is the number of a layer, {e} that of an expert, {p} "weight" or "bias".
LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
PART = re.compile(r"(?<=\.)(weight|bias)$")


@dataclass(frozen=True)
class Row:
    """One line of a table: the same numbers under both names."""

    theirs: str
    ours: str | tuple[str, ...]

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return theirs

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return ours

    @property
    def our_names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


class Turned(Row):
    """Their matrix is (in, out), ours (out, in): GPT-2's Conv1D."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [turned(one) for one in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [turned(one) for one in ours]


class Joined(Row):
    """Their one matrix holds several of ours side by side, turned: c_attn is q, k and v."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [turned(one) for one in theirs[0].chunk(len(self.ours), dim=-1)]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [torch.cat([turned(one) for one in ours], dim=-1)]


class Stacked(Row):
    """Their many matrices, one for each expert {e}, are one of ours."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [torch.stack(theirs)]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return list(ours[0])


class RowVector(Row):
    """Theirs is (1, n), ours (n,): Marian's bias on the logits."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [theirs[0][0]]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [ours[0][None]]


@dataclass(frozen=True)
class Family:
    """What we know about one family of checkpoints."""

    model_type: str  # config.json's word for it
    rows: Callable[[Spec], list[Row]]  # the table
    read: Callable[[Any], Spec]  # config.json -> spec
    write: Callable[
        [Spec], dict[str, Any] | None
    ]  # spec -> config.json; None: another shape altogether
    prefix: str = ""  # what a file of the bare model leaves out
    spare: Callable[[Spec], tuple[str, ...]] = (
        lambda spec: ()
    )  # weights that say nothing (patterns): masks, ...
    copies: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # weights that repeat the first of these
    aliases: Mapping[str, str] = field(default_factory=dict)  # old endings of names -> today's


@dataclass(frozen=True)
class Link:
    """One row with its numbers filled in: these tensors of theirs are these of ours."""

    row: Row
    theirs: tuple[str, ...]
    ours: tuple[str, ...]


def links(rows: list[Row], slots: Mapping[str, Tensor]) -> tuple[list[Link], list[str]]:
    """The table written out for a model with these slots, and the slots for which it has no name."""
    table = {ours: row for row in rows for ours in row.our_names}
    found: dict[tuple[str, ...], Link] = {}
    nameless = []
    for slot, tensor in slots.items():
        pattern, numbers = as_pattern(slot)
        row = table.get(pattern)
        if row is None:
            nameless.append(slot)
            continue
        experts = range(len(tensor)) if isinstance(row, Stacked) else range(1)
        theirs = tuple(row.theirs.format(**numbers, e=e) for e in experts)
        found[theirs] = Link(row, theirs, tuple(name.format(**numbers) for name in row.our_names))
    return list(found.values()), nameless


def as_pattern(slot: str) -> tuple[str, dict[str, str]]:
    """as_pattern("decoder.layers.3.ffn.norm.weight") is "decoder.layers.{i}.ffn.norm.{p}" with i = 3, p = weight."""
    layer, part = LAYER.search(slot), PART.search(slot)
    pattern = PART.sub("{p}", LAYER.sub("{i}", slot))
    return pattern, {"i": layer[0] if layer else "", "p": part[0] if part else ""}


def to_theirs(table: list[Link], weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights under their names; given tensors without memory, the shapes that we expect of a file."""
    return {
        name: tensor
        for link in table
        for name, tensor in zip(
            link.theirs, link.row.to_theirs([weights[n] for n in link.ours]), strict=True
        )
    }


def to_ours(table: list[Link], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """The weights under our names, each read when its turn comes."""
    return {
        name: tensor
        for link in table
        for name, tensor in zip(
            link.ours, link.row.to_ours([read(n) for n in link.theirs]), strict=True
        )
    }


def turned(matrix: Tensor) -> Tensor:
    """Rows and columns exchanged; a vector stays."""
    return matrix.t().contiguous()
