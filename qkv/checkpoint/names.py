"""Tensor name mapping: one table per model family, used forwards to import and backwards to export.

Tensors that are transposed, concatenated or stacked in one of the formats are subclasses of `Row`.
"foreign" is the other format (Hugging Face, GGUF), "native" is qkv's.
See docs/guides/import-export.md, "Weight names".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.model.spec import Spec

Tensors = list[Tensor]
Weights = dict[str, Tensor]  # by name
Names = Mapping[str, str]  # foreign -> native
Fields = dict[str, Any]  # of a JSON object: config.json

# In a pattern, {i} is the index of a layer, {e} that of an expert, {p} "weight" or "bias".
LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
PART = re.compile(r"(?<=\.)(weight|bias)$")


@dataclass(frozen=True)
class Row:
    """One entry of a name mapping: the same tensor under both names."""

    foreign: str
    native: str | tuple[str, ...]

    def to_native(self, tensors: Tensors) -> Tensors:
        return tensors

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return tensors

    @property
    def native_names(self) -> tuple[str, ...]:
        return (self.native,) if isinstance(self.native, str) else self.native


class Transposed(Row):
    """The foreign matrix is (in, out), the native one (out, in): GPT-2's Conv1D."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return [transposed(tensor) for tensor in tensors]

    to_foreign = to_native


class TransposedConcat(Row):
    """One foreign matrix is several native ones, transposed and concatenated: c_attn is q, k, v."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return [transposed(part) for part in tensors[0].chunk(len(self.native), dim=-1)]

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return [torch.cat([transposed(tensor) for tensor in tensors], dim=-1)]


class Stacked(Row):
    """Foreign matrices, one for each expert {e}, are stacked in one native tensor."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return [torch.stack(tensors)]

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return list(tensors[0])


class RowVector(Row):
    """The foreign tensor is (1, n), the native one (n,): Marian's bias on the logits."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return [tensors[0][0]]

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return [tensors[0][None]]


class NotExpressible(Exception):
    """A format has no way to describe this spec."""


@dataclass(frozen=True)
class Family:
    """A model family: its name mapping, and the conversion between its config.json and a spec."""

    architecture: str  # "Llama": LlamaForCausalLM, or LlamaModel without a head
    rows: Callable[[Spec], list[Row]]  # the name mapping
    read: Callable[[Any], Spec]  # config.json -> spec
    write: Callable[[Spec], Fields]  # spec -> config.json; may raise NotExpressible
    # Patterns of stored tensors that are not weights: attention masks, rotary frequencies.
    ignored: tuple[str, ...] = ()  # {n_layers} is the number of layers
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # tied to the first of these
    aliases: Names = field(default_factory=dict)  # old suffixes of names -> current
    prefix: str = "model."  # names in a checkpoint of the base model lack this prefix
    head: str = "ForCausalLM"  # the architecture's suffix if it has a language modeling head


class ResolvedRow(NamedTuple):
    """A row with its patterns filled in: these foreign tensors are these native ones."""

    row: Row
    foreign: tuple[str, ...]
    native: tuple[str, ...]


def part_rows(names: Names, foreign: str = "", native: str = "") -> list[Row]:
    """Rows of the weights and biases of parts: their foreign and native names, with prefixes."""
    return [
        Row(f"{foreign}{theirs}.{{p}}", f"{native}{ours}.{{p}}") for theirs, ours in names.items()
    ]


def resolve_rows(rows: list[Row], state_dict: Weights) -> list[ResolvedRow]:
    """The rows resolved for the names of a state dict; each name must have a row."""
    table = {native: row for row in rows for native in row.native_names}
    found: dict[tuple[str, ...], ResolvedRow] = {}
    for name, tensor in state_dict.items():
        pattern, values = as_pattern(name)
        row = table[pattern]
        experts = range(len(tensor)) if isinstance(row, Stacked) else range(1)
        foreign = tuple(row.foreign.format(**values, e=e) for e in experts)
        native = tuple(native_name.format(**values) for native_name in row.native_names)
        found[foreign] = ResolvedRow(row, foreign, native)
    return list(found.values())


def as_pattern(name: str) -> tuple[str, dict[str, str]]:
    """Split a name into its pattern and values.

    as_pattern("decoder.layers.3.ffn.norm.weight") is "decoder.layers.{i}.ffn.norm.{p}" with
    i = 3, p = weight.
    """
    layer, part = LAYER.search(name), PART.search(name)
    pattern = PART.sub("{p}", LAYER.sub("{i}", name))
    return pattern, {"i": layer[0] if layer else "", "p": part[0] if part else ""}


def to_foreign(table: list[ResolvedRow], weights: Weights) -> Weights:
    """The weights under their foreign names; for meta tensors, the shapes expected of a file."""
    return {
        name: tensor
        for row, foreign, native in table
        for name, tensor in zip(foreign, row.to_foreign([weights[n] for n in native]), strict=True)
    }


def to_native(table: list[ResolvedRow], read: Callable[[str], Tensor]) -> Weights:
    """The weights under their native names, read one entry at a time."""
    return {
        name: tensor
        for row, foreign, native in table
        for name, tensor in zip(native, row.to_native([read(n) for n in foreign]), strict=True)
    }


def transposed(matrix: Tensor) -> Tensor:
    """A matrix transposed; a vector is unchanged."""
    return matrix.t().contiguous()
