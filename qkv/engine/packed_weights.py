"""Packed weights: matrices that read the same input side by side, norms in few operations, tables of positions.

In: modules of the model. Out: functions of the same values that cost less for one token per row. Explained in
docs/performance.md, "Decoding".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import GroupedAttention
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.head import LmHead
from qkv.model.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from qkv.model.transformer import LayerStack
from qkv.model.turn import NoTurn

ONEDNN_MIN_WEIGHTS = (
    1 << 22
)  # of a matrix; measured at batch 16: 768 x 32,000 takes 18 ms by MKL, 12 ms by oneDNN
FIRST_POSITIONS = 64  # in the tables at the start; they double when they are too short
MAX_ROTATIONS = 1_024  # rotation matrices that are kept: they take memory

ONEDNN_NAMES = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
}

Map = Callable[[Tensor], Tensor]
Make = Callable[[Tensor, Tensor | None], Map]  # how a matrix and its bias become a function


def version_of(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Differs when a weight has changed or moved; tensors made in inference mode do not count their changes."""
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights
    ]


# ── Products ─────────────────────────────────────────────────────────────────────────────────────────────────────
def product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, width); W is stored transposed, which is up to twice as fast for a few rows."""
    transposed = weight.t().contiguous()
    few = (
        (lambda x: torch.mm(x, transposed))
        if bias is None
        else (lambda x: torch.addmm(bias, x, transposed))
    )
    return (
        LargeProduct(few, weight, bias)
        if weight.numel() >= ONEDNN_MIN_WEIGHTS and has_onednn(weight)
        else few
    )


def has_onednn(weight: Tensor) -> bool:
    """Whether this torch brings the library, and these numbers are for it."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )


class LargeProduct:
    """A matrix larger than the processor's caches: several rows go through oneDNN's layout of it, made when first needed."""

    def __init__(self, few: Map, weight: Tensor, bias: Tensor | None):
        self.few, self.weight, self.bias = few, weight, bias
        self.many: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return self.few(x)
        if self.many is None:
            self.many = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        return torch.ops.mkldnn._linear_pointwise.default(x, self.many, self.bias, "none", [], "")


def joined(*maps: nn.Linear) -> Map:
    """Several maps of one input as one product."""
    return product(*stacked(maps))


def activated_product(linear: nn.Linear, activation: Map) -> Map:
    """activation(x W^T + b) for many rows; the activation is fused into oneDNN's product, which halves the time of a gelu."""
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if not has_onednn(weight) or activation not in ONEDNN_NAMES:
        plain = product(weight, bias)
        return lambda x: activation(plain(x))
    laid_out, (name, algorithm) = (
        torch.ops.mkldnn._reorder_linear_weight(weight),
        ONEDNN_NAMES[activation],
    )
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(
        x, laid_out, bias, name, [], algorithm
    )


def stacked(maps: Sequence[nn.Linear], gain: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The matrices of several maps in one, and their biases; `gain` first multiplies what they read."""
    weight = torch.cat([one.weight.detach() for one in maps])
    biases = [one.bias.detach() for one in maps if one.bias is not None]
    return weight if gain is None else weight * gain, torch.cat(biases) if biases else None


def stacked_qkv(attn: GroupedAttention, gain: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """q, k and v in one; q is already divided by sqrt(d_head), unless a norm follows that does it."""
    weight, bias = stacked([attn.q_proj, attn.k_proj, attn.v_proj], gain)
    if attn.heads.qk_norm:
        return weight, bias
    scale = weight.new_ones(len(weight))
    scale[: attn.q_proj.out_features] = attn.scale
    return weight * scale[:, None], None if bias is None else bias * scale


def head_product(head: LmHead, table: Tensor, gain: Tensor | None, make: Make) -> Map:
    """The stream to logits; a gain before it stands in its matrix."""
    weight = (table if head.weight is None else head.weight).detach()
    return make(
        weight if gain is None else weight * gain, None if head.bias is None else head.bias.detach()
    )


# ── Norms ────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class PackedNorm:
    """A norm as a value; "unit" is x / sqrt(sum x^2 + eps): an RMSNorm in which sqrt(width) is part of the gain."""

    kind: Literal["none", "layer", "unit"] = "none"
    gain: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return torch.layer_norm(x, x.shape[-1:], self.gain, self.bias, self.eps)
        x = (
            x / torch.linalg.vector_norm(x, 2, -1, True).square_().add_(self.eps).sqrt_()
        )  # torch's own is three times as slow
        return x if self.gain is None else x.mul_(self.gain)


def open_norm(module: nn.Module, norm: s.Norm) -> tuple[PackedNorm, Tensor | None]:
    """The norm, and the gain that the next matrix has to take on (None: nothing is left to do)."""
    whole = packed_norm(module, norm)
    return (replace(whole, gain=None), whole.gain) if whole.kind == "unit" else (whole, None)


def packed_norm(module: nn.Module, norm: s.Norm) -> PackedNorm:
    """The whole norm, without the module around it."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    if not weights:
        return PackedNorm()
    if norm.kind == "layer":
        return PackedNorm("layer", weights["weight"], weights["bias"], norm.eps)
    return unit_norm(weights["weight"], len(weights["weight"]), norm.eps)


def unit_norm(gain: Tensor, width: int, eps: float) -> PackedNorm:
    """An RMSNorm over `width` numbers: gain * x / sqrt(sum x^2 / width + eps)."""
    return PackedNorm("unit", gain * math.sqrt(width), None, width * eps)


# ── Positions ────────────────────────────────────────────────────────────────────────────────────────────────────
class PositionTables(NamedTuple):
    """What the first positions add to an embedding, and the cosines and sines of their rotation."""

    length: int
    added: Tensor | None  # (positions, d_model), None: nothing is added
    cos: Tensor | None  # (positions, half), None: nothing is rotated
    sin: Tensor | None


class PackedPositions:
    """The position rule of a stack as tables, made longer when a later position is asked for."""

    def __init__(self, stack: LayerStack, d_head: int, table: Tensor):
        self.rule, self.limit, self.table = stack.positions, stack.limit, table
        self.adds = isinstance(stack.positions, LearnedPositions | SinusoidalPositions)
        self.rotates = isinstance(stack.positions, RotaryPositions)
        self.interleaved = (
            isinstance(stack.positions, RotaryPositions)
            and stack.positions.rotary.pairs == "adjacent"
        )
        self.identity = torch.eye(d_head, dtype=table.dtype, device=table.device)
        self.rotations: dict[int, Tensor] = {}
        self.tables = self._make(FIRST_POSITIONS)

    def up_to(self, length: int) -> PositionTables:
        """Tables of at least `length` positions; other threads may make them longer at the same time."""
        tables = self.tables
        if length > tables.length:
            tables = self.tables = self._make(max(length, 2 * tables.length))
        assert length <= tables.length, "a sequence is longer than the model's table of positions"
        return tables

    def _make(self, length: int) -> PositionTables:
        length = min(length, self.limit or length)
        positions = torch.arange(length, device=self.table.device)[None]
        added = (
            self.rule(self.table.new_zeros(1, length, self.table.shape[1]), positions)[0]
            if self.adds
            else None
        )
        if not self.rotates:
            return PositionTables(length, added, None, None)
        rotary = self.rule.turn(positions, self.table.dtype)  # cos: (1, 1, positions, half)
        assert not isinstance(rotary, NoTurn)
        return PositionTables(
            length, added, rotary.cos[0, 0].contiguous(), rotary.sin[0, 0].contiguous()
        )

    def add(self, x: Tensor, positions: int | Tensor, scale: float) -> Tensor:
        """Embeddings (rows, d_model), scaled, at one position or each row at its own."""
        if not self.adds:
            return x if scale == 1 else x * scale
        last = positions if isinstance(positions, int) else int(positions.max())
        added = self.up_to(last + 1).added
        assert added is not None
        return torch.add(added[positions], x, alpha=scale)

    def rotation(self, positions: int | Tensor) -> Tensor | None:
        """The rotation of queries and keys as a matrix, (d_head, d_head), or one for each row; None: no rotation."""
        if not self.rotates:
            return None
        if isinstance(positions, Tensor):
            return torch.stack([self._rotation(position) for position in positions.tolist()])
        return self._rotation(positions)

    def _rotation(self, position: int) -> Tensor:
        matrix = self.rotations.get(position)  # read once: another thread may clear the dict
        if matrix is None:
            if len(self.rotations) >= MAX_ROTATIONS:
                self.rotations.clear()
            rotary = self.rule.turn(
                torch.tensor([[position]], device=self.table.device), self.table.dtype
            )
            matrix = self.rotations[position] = rotary(self.identity[None, None])[0, 0]
        return matrix
