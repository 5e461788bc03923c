"""Packed weights: merged matrices, folded norm gains and position tables for fast decode steps.

Matrices with the same input are concatenated into one. See docs/explanation/performance.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import GroupedQueryAttention
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.head import LmHead
from qkv.model.positions import LearnedPositions, RotaryPositions, SinusoidalPositions
from qkv.model.rotary import HalvesRotation, InterleavedRotation, NoRotation, Rotation
from qkv.model.transformer import LayerStack

# Weights of a matrix; measured at batch 16: 768 x 32,000 takes 18 ms with MKL, 12 ms with oneDNN.
ONEDNN_MIN_WEIGHTS = 1 << 22
INITIAL_POSITIONS = 64  # size of the tables at first; it doubles when it is too small
MAX_CACHED_ROTATIONS = 1_024  # rotation matrices, to limit memory

ONEDNN_ACTIVATIONS = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
}

Map = Callable[[Tensor], Tensor]
MakeProduct = Callable[[Tensor, Tensor | None], Map]  # weight, bias -> product


# ── Products ─────────────────────────────────────────────────────────────────────────────────────
def product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, inputs); W is stored transposed: up to twice as fast for few rows."""
    transposed = weight.t().contiguous()

    def multiply(x: Tensor) -> Tensor:
        return torch.mm(x, transposed) if bias is None else torch.addmm(bias, x, transposed)

    is_large = weight.numel() >= ONEDNN_MIN_WEIGHTS and has_onednn(weight)
    return LargeProduct(multiply, weight, bias) if is_large else multiply


def has_onednn(weight: Tensor) -> bool:
    """Whether torch can multiply this weight with oneDNN."""
    is_cpu_float32 = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_cpu_float32 and torch.backends.mkldnn.is_available()


class LargeProduct:
    """A matrix larger than the CPU's caches: one row uses `one_row`, several use oneDNN.

    The weight is copied into oneDNN's layout when first needed.
    """

    def __init__(self, one_row: Map, weight: Tensor, bias: Tensor | None):
        self.one_row, self.weight, self.bias = one_row, weight, bias
        self.onednn_weight: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return self.one_row(x)
        if self.onednn_weight is None:
            self.onednn_weight = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        return torch.ops.mkldnn._linear_pointwise.default(
            x, self.onednn_weight, self.bias, "none", [], ""
        )


def merged_product(*linears: nn.Linear) -> Map:
    """Several linear layers with the same input as one product."""
    return product(*merged_weights(linears))


def activated_product(linear: nn.Linear, activation: Map) -> Map:
    """activation(x W^T + b), fused into oneDNN's product: half the time for GELU."""
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if not has_onednn(weight) or activation not in ONEDNN_ACTIVATIONS:
        multiply = product(weight, bias)
        return lambda x: activation(multiply(x))
    onednn_weight = torch.ops.mkldnn._reorder_linear_weight(weight)
    name, algorithm = ONEDNN_ACTIVATIONS[activation]
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(
        x, onednn_weight, bias, name, [], algorithm
    )


def merged_weights(
    linears: Sequence[nn.Linear], gain: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The concatenated weights and biases; `gain`, which scales the input, is folded in."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return weight if gain is None else weight * gain, torch.cat(biases) if biases else None


def merged_qkv(attn: GroupedQueryAttention, gain: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """q, k and v as one matrix; q is divided by sqrt(d_head), unless a query norm does so."""
    weight, bias = merged_weights([attn.q_proj, attn.k_proj, attn.v_proj], gain)
    if attn.heads.qk_norm:
        return weight, bias
    scale = weight.new_ones(len(weight))
    scale[: attn.q_proj.out_features] = attn.scale
    return weight * scale[:, None], None if bias is None else bias * scale


def head_product(head: LmHead, table: Tensor, gain: Tensor | None, make: MakeProduct) -> Map:
    """The output projection to logits, with the gain of the norm before it folded in."""
    weight = (table if head.weight is None else head.weight).detach()
    bias = None if head.bias is None else head.bias.detach()
    return make(weight if gain is None else weight * gain, bias)


# ── Norms ────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class PackedNorm:
    """A norm as a value; "unit" is gain * x / sqrt(sum x^2 + eps).

    An RMSNorm is a unit norm with sqrt(width) as a factor of the gain.
    """

    kind: Literal["none", "layer", "unit"] = "none"
    gain: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return torch.layer_norm(x, x.shape[-1:], self.gain, self.bias, self.eps)
        # Three times as fast as torch's own RMSNorm.
        x = x / torch.linalg.vector_norm(x, 2, -1, True).square_().add_(self.eps).sqrt_()
        return x if self.gain is None else x.mul_(self.gain)


def split_gain(module: nn.Module, norm: s.Norm) -> tuple[PackedNorm, Tensor | None]:
    """The norm without gain, and the gain to fold into the next matrix; None: nothing to fold."""
    packed = packed_norm(module, norm)
    return (replace(packed, gain=None), packed.gain) if packed.kind == "unit" else (packed, None)


def packed_norm(module: nn.Module, norm: s.Norm) -> PackedNorm:
    """The norm of a module, with its gain and bias."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    if not weights:
        return PackedNorm()
    if norm.kind == "layer":
        return PackedNorm("layer", weights["weight"], weights["bias"], norm.eps)
    return unit_norm(weights["weight"], len(weights["weight"]), norm.eps)


def unit_norm(gain: Tensor, width: int, eps: float) -> PackedNorm:
    """RMSNorm over `width` numbers: gain * x / sqrt(sum x^2 / width + eps)."""
    return PackedNorm("unit", gain * math.sqrt(width), None, width * eps)


# ── Positions ────────────────────────────────────────────────────────────────────────────────────
class PositionTables(NamedTuple):
    """Position embeddings, and cosines and sines of rotary angles, of the first positions."""

    length: int
    added: Tensor | None  # (positions, d_model); None: no position embeddings
    cos: Tensor | None  # (positions, half); None: no rotary embedding
    sin: Tensor | None


class PackedPositions:
    """The positions of a stack as tables, extended when needed.

    `token_type` (d_model,) is added at every position: the embedding of token type 0.
    """

    def __init__(
        self, stack: LayerStack, d_head: int, table: Tensor, token_type: Tensor | None = None
    ):
        self.module, self.limit, self.table = stack.positions, stack.limit, table
        adds_positions = isinstance(stack.positions, LearnedPositions | SinusoidalPositions)
        self.token_type, self.adds = token_type, adds_positions or token_type is not None
        self.rotates = isinstance(stack.positions, RotaryPositions)
        self.interleaved = (
            isinstance(stack.positions, RotaryPositions) and stack.positions.rotary.interleaved
        )
        self.identity = torch.eye(d_head, dtype=table.dtype, device=table.device)
        self.rotations: dict[int, Tensor] = {}
        self.tables = self._make(INITIAL_POSITIONS)

    def up_to(self, length: int) -> PositionTables:
        """Tables of at least `length` positions; other threads may extend them concurrently."""
        tables = self.tables
        if length > tables.length:
            tables = self.tables = self._make(max(length, 2 * tables.length))
        assert length <= tables.length, "more positions than the model has"
        return tables

    def _make(self, length: int) -> PositionTables:
        length = min(length, self.limit or length)
        positions = torch.arange(length, device=self.table.device)[None]
        added = None
        if self.adds:
            added = self.module(self.table.new_zeros(1, length, self.table.shape[1]), positions)[0]
            added = added if self.token_type is None else added + self.token_type
        if not self.rotates:
            return PositionTables(length, added, None, None)
        rotary = self.module.rotation(positions, self.table.dtype)  # cos: (1, 1, positions, half)
        assert not isinstance(rotary, NoRotation)
        return PositionTables(
            length, added, rotary.cos[0, 0].contiguous(), rotary.sin[0, 0].contiguous()
        )

    def add(self, x: Tensor, positions: int | Tensor, scale: float) -> Tensor:
        """Scale embeddings (rows, d_model) and add those of one position, or of each row's."""
        if not self.adds:
            return x if scale == 1 else x * scale
        last = positions if isinstance(positions, int) else int(positions.max())
        added = self.up_to(last + 1).added
        assert added is not None
        return torch.add(added[positions], x, alpha=scale)

    def rotation(self, positions: int | Tensor) -> Tensor | None:
        """The rotation as a matrix (d_head, d_head), or one per row; None: no rotation."""
        if not self.rotates:
            return None
        if isinstance(positions, Tensor):
            return torch.stack([self._rotation(position) for position in positions.tolist()])
        return self._rotation(positions)

    def rotation_of_tokens(self, positions: Tensor) -> Rotation:
        """The rotation of (tokens, heads, d_head) at these positions, (tokens,)."""
        tables = self.up_to(int(positions.max()) + 1)
        if tables.cos is None or tables.sin is None:
            return NoRotation()
        rotate = InterleavedRotation if self.interleaved else HalvesRotation
        return rotate(tables.cos[positions][:, None], tables.sin[positions][:, None])

    def _rotation(self, position: int) -> Tensor:
        matrix = self.rotations.get(position)  # one read: another thread may clear the dict
        if matrix is None:
            if len(self.rotations) >= MAX_CACHED_ROTATIONS:
                self.rotations.clear()
            rotary = self.module.rotation(
                torch.tensor([[position]], device=self.table.device), self.table.dtype
            )
            matrix = self.rotations[position] = rotary(self.identity[None, None])[0, 0]
        return matrix
