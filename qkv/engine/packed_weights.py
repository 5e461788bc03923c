"""The parts of a fast step: weights side by side, norms in few operations, places worked out ahead.

In: modules of the readable model. Out: functions of the same values that cost less for one token per row. What each
trick gives is told in docs/performance.md, "Decoding".
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
from qkv.model.positions import RotaryPositions
from qkv.model.transformer import LayerStack

LARGE = 1 << 22  # numbers in a matrix; measured at batch 16: 768 x 32,000 takes 18 ms by MKL, 12 ms by oneDNN
ROOM = 64  # places worked out at a time
MANY = 16  # times ROOM places are remembered: their matrices take memory

ONEDNN_NAMES = {ACTIVATIONS["gelu"]: ("gelu", "none"), ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"), ACTIVATIONS["relu"]: ("relu", "")}

Map = Callable[[Tensor], Tensor]
Make = Callable[[Tensor, Tensor | None], Map]  # how a matrix and its bias become a function


def version_of(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Another one when a weight has changed or moved; what is made in inference mode does not count its changes."""
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in weights]


# ── Products ─────────────────────────────────────────────────────────────────────────────────────────────────────
def product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, width); W is kept the other way round, which is up to twice as fast for a few rows."""
    turned = weight.t().contiguous()
    few = (lambda x: torch.mm(x, turned)) if bias is None else (lambda x: torch.addmm(bias, x, turned))
    return LargeProduct(few, weight, bias) if weight.numel() >= LARGE and has_onednn(weight) else few


def has_onednn(weight: Tensor) -> bool:
    """Whether this torch brings the library, and these numbers are for it."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


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
    """activation(x W^T + b) for many rows; oneDNN bends each number while it is still near: half the time of a gelu."""
    weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
    if not has_onednn(weight) or activation not in ONEDNN_NAMES:
        plain = product(weight, bias)
        return lambda x: activation(plain(x))
    laid_out, (name, algorithm) = torch.ops.mkldnn._reorder_linear_weight(weight), ONEDNN_NAMES[activation]
    return lambda x: torch.ops.mkldnn._linear_pointwise.default(x, laid_out, bias, name, [], algorithm)


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
    return make(weight if gain is None else weight * gain, None if head.bias is None else head.bias.detach())


# ── Norms ────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class FastNorm:
    """A norm as a value; "unit" is x / sqrt(sum x^2 + small): an RMSNorm in which sqrt(width) is part of the gain."""

    kind: Literal["none", "layer", "unit"] = "none"
    gain: Tensor | None = None
    bias: Tensor | None = None
    small: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return torch.layer_norm(x, x.shape[-1:], self.gain, self.bias, self.small)
        x = x / torch.linalg.vector_norm(x, 2, -1, True).square_().add_(self.small).sqrt_()  # torch's own is three times as slow
        return x if self.gain is None else x.mul_(self.gain)


def open_norm(module: nn.Module, norm: s.Norm) -> tuple[FastNorm, Tensor | None]:
    """The norm, and the gain that the next matrix has to take on (None: nothing is left to do)."""
    whole = fast_norm(module, norm)
    return (replace(whole, gain=None), whole.gain) if whole.kind == "unit" else (whole, None)


def fast_norm(module: nn.Module, norm: s.Norm) -> FastNorm:
    """The whole norm, without the module around it."""
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    if not weights:
        return FastNorm()
    if norm.kind == "layer":
        return FastNorm("layer", weights["weight"], weights["bias"], norm.eps)
    return unit_norm(weights["weight"], len(weights["weight"]), norm.eps)


def unit_norm(gain: Tensor, width: int, eps: float) -> FastNorm:
    """An RMSNorm over `width` numbers: gain * x / sqrt(sum x^2 / width + eps)."""
    return FastNorm("unit", gain * math.sqrt(width), None, width * eps)


# ── Places ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Places:
    """What each place adds to an embedding, and the matrix that turns the queries and keys standing there."""

    def __init__(self, stack: LayerStack, d_head: int, table: Tensor):
        self.positions, self.limit, self.table = stack.positions, stack.limit, table
        self.turns = isinstance(stack.positions, RotaryPositions)
        self.straight = torch.eye(d_head, dtype=table.dtype, device=table.device)
        self.kept: dict[int, Chunk] = {}

    def added(self, place: int) -> Tensor:
        """What is added to an embedding here, (d_model,)."""
        return self._chunk(place).each[place % ROOM][0]

    def turn(self, place: int) -> Tensor | None:
        """(d_head, d_head): a query or key times this matrix is turned; None: nothing turns."""
        return self._chunk(place).each[place % ROOM][1]

    def first(self, length: int) -> tuple[Tensor, Tensor | None]:
        """What the first places add, (length, d_model), and their turns, (length, d_head, d_head); ROOM places at most."""
        chunk = self._chunk(0)
        return chunk.added[:length], None if chunk.turns is None else chunk.turns[:length]

    def _chunk(self, place: int) -> "Chunk":
        first = place // ROOM * ROOM
        chunk = self.kept.get(first)  # asked once: another thread may clear it
        if chunk is None:
            if len(self.kept) >= MANY:
                self.kept.clear()
            chunk = self._work_out(torch.arange(first, min(first + ROOM, self.limit or first + ROOM), device=self.table.device))
            self.kept[first] = chunk
        return chunk

    def _work_out(self, places: Tensor) -> "Chunk":
        added = self.positions(self.table.new_zeros(1, len(places), self.table.shape[1]), places[None])[0]
        if not self.turns:
            return Chunk(added, None, [(one, None) for one in added])
        turn = self.positions.turn(places[:, None], self.table.dtype)                # cos: (places, 1, 1, half)
        turns = turn(self.straight.expand(len(places), 1, -1, -1))[:, 0].contiguous()
        return Chunk(added, turns, list(zip(added, turns, strict=True)))


class Chunk(NamedTuple):
    """Places worked out together: all of them, and one by one, which is quicker to look up."""

    added: Tensor         # (places, d_model)
    turns: Tensor | None  # (places, d_head, d_head)
    each: list[tuple[Tensor, Tensor | None]]
