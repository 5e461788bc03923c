"""The native step: the layers of a fast model as one call, where a compiler is at hand.

In: a decoder of fast layers. Out: what their step gives, from the same weights and into the same cache, without a
dispatch for each operation (decoding.cpp). Told in docs/performance.md, "The native library".
"""

import ctypes as c
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.engine.kv_cache import KeyValues
from qkv.engine.packed_layer import FastCross, FastLayer
from qkv.engine.packed_weights import FastNorm, Map
from qkv.kernels.build import library
from qkv.kernels.calling import address, inference_threads_for
from qkv.model.feed_forward import ACTIVATIONS

MUCH = 1 << 19  # products of a number and a weight that keep a second thread busy
MANY = 768      # rows: from here on torch's product is faster, though the matrix must be laid out for it
KINDS = ("none", "layer", "unit")


# ── The structures of decoding.cpp, field by field ─────────────────────────────────────────────────────────────────
class Matrix(c.Structure):
    _fields_ = [("panels", c.c_void_p), ("scales", c.c_void_p), ("bias", c.c_void_p), ("outputs", c.c_int32), ("inputs", c.c_int32)]


def structures(number: Any) -> tuple[type[c.Structure], ...]:
    """Norm, Attention, Layer and Model for numbers of one type."""

    class Norm(c.Structure):
        _fields_ = [("gain", c.c_void_p), ("bias", c.c_void_p), ("small", number), ("kind", c.c_int32)]

    class Attention(c.Structure):
        _fields_ = [("norm", Norm), ("into", Matrix), ("out", Matrix), ("q_norm", Norm), ("k_norm", Norm),
                    ("heads", c.c_int32), ("kv_heads", c.c_int32), ("d_head", c.c_int32)]

    class Layer(c.Structure):
        _fields_ = [("self", Attention), ("cross", Attention), ("has_cross", c.c_int32), ("pre_norm", c.c_int32),
                    ("norm", Norm), ("up", Matrix), ("down", Matrix), ("gated", c.c_int32), ("activation", c.c_int32)]

    class Model(c.Structure):
        _fields_ = [("layers", c.POINTER(Layer)), ("n_layers", c.c_int32), ("d_model", c.c_int32), ("widest", c.c_int32),
                    ("norm", Norm), ("head", Matrix)]

    return Norm, Attention, Layer, Model


class Cells(c.Structure):
    _fields_ = [("keys", c.c_void_p), ("values", c.c_void_p), ("hidden", c.c_void_p), ("by_sentence", c.c_int64),
                ("by_beam", c.c_int64), ("room", c.c_int32), ("end", c.c_int32)]


STRUCTURES = {torch.float32: structures(c.c_float), torch.float64: structures(c.c_double)}


# ── Matrices ─────────────────────────────────────────────────────────────────────────────────────────────────────
class NativeProduct:
    """x W^T + b for (rows, width); W stands in panels, (panels, inputs, width of a panel), its last one filled up with zeros."""

    def __init__(self, lib: c.CDLL, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None):
        width = lib.qkv_width()
        self.run, self.bias, self.scales = lib.qkv_product, bias, scales
        self.panels, self.filled = panels_of(weight, width), [None if one is None else panels_of(one[:, None], width) for one in (scales, bias)]
        self.matrix = Matrix(address(self.panels), *map(address, self.filled), *weight.shape)  # points into these
        self.size, self.dtype = weight.numel(), (weight if scales is None else scales).dtype

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) >= MANY:
            return F.linear(x, self.weight(), self.bias)
        x, out = x.contiguous(), x.new_empty(len(x), self.matrix.outputs)
        self.run(c.byref(self.matrix), address(x, self.dtype), len(x), inference_threads_for(len(x) * self.size, MUCH), address(out, self.dtype))
        return out

    def weight(self) -> Tensor:
        """(outputs, inputs), laid out anew: not worth keeping, for a long prompt costs far more."""
        whole = self.panels.transpose(1, 2).flatten(0, 1)[: self.matrix.outputs]
        return whole if self.scales is None else whole * self.scales[:, None]


def native_product(weight: Tensor, bias: Tensor | None) -> Map:
    lib = library(weight.dtype)
    assert lib is not None
    return NativeProduct(lib, weight, bias)


def native_int8_product(weight: Tensor, bias: Tensor | None) -> Map:
    """W in 8 bits, one scale for each output; what comes in keeps all its digits."""
    lib = library(weight.dtype)
    assert lib is not None
    scales = weight.abs().amax(dim=1).clamp_min(1e-12) / 127
    return NativeProduct(lib, (weight / scales[:, None]).round().to(torch.int8), bias, scales)


def panels_of(weight: Tensor, width: int) -> Tensor:
    """(outputs, inputs) -> (panels, inputs, width)."""
    outputs, inputs = weight.shape
    filled = weight.new_zeros(-(-outputs // width) * width, inputs)
    filled[:outputs] = weight
    return filled.view(-1, width, inputs).transpose(1, 2).contiguous()


# ── The step ─────────────────────────────────────────────────────────────────────────────────────────────────────
class NativeStep:
    """A decoder whose matrices are NativeProducts, and what follows its layers."""

    def __init__(self, layers: list[FastLayer], norm: FastNorm, head: NativeProduct, like: Tensor):
        self.norm_type, self.attention_type, self.layer_type, model_type = STRUCTURES[like.dtype]
        lib = library(like.dtype)
        assert lib is not None
        self.run: Callable[..., None] = lib.qkv_step
        self.dtype = like.dtype
        self.tensors: list[Tensor] = []  # what the structures point to
        made = (self.layer_type * len(layers))(*map(self._layer, layers))
        matrices = [one for layer in layers for one in matrices_of(layer)] + [head]
        widest = max(max(one.matrix.outputs, one.matrix.inputs) for one in matrices[:-1])
        self.size, self.vocab = sum(one.size for one in matrices), head.matrix.outputs
        self.model = model_type(made, len(layers), like.shape[1], widest, self._norm(norm), head.matrix)
        self.alive = layers, head, made

    def __call__(self, x: Tensor, turn: Tensor | None, cells: KeyValues, memory: KeyValues | None) -> Tensor:
        """The stream of each row's newest token, (rows, d_model), overwritten -> (rows, vocab); one turn, or each row's own."""
        rows, beams = len(x), len(x) // cells.all.shape[2]
        cells.reserve(beams)
        cells.used += beams  # the library shows each beam its own new cell
        logits = x.new_empty(rows, self.vocab)
        there = None if memory is None else c.byref(as_cells(memory, memory.all.shape[4], self.dtype))
        by_row = 0 if turn is None or turn.dim() == 2 else turn.stride(0)
        self.run(c.byref(self.model), address(x, self.dtype), address(turn, self.dtype), by_row,
                 c.byref(as_cells(cells, cells.used, self.dtype)), there,
                 rows, beams, inference_threads_for(rows * self.size, MUCH), address(logits, self.dtype))
        return logits

    def _layer(self, layer: FastLayer) -> c.Structure:
        own = self._attention(layer, layer.norms[0], layer.qkv, layer.out)
        if layer.head_norm is not None:
            own.q_norm, own.k_norm = self._norm(layer.head_norm, 0), self._norm(layer.head_norm, layer.heads.n_heads)
        cross = self.attention_type()
        if layer.cross is not None:
            cross = self._attention(layer.cross, layer.norms[1], layer.cross.q, layer.cross.out)
            if layer.cross.q_norm is not None:
                cross.q_norm = self._norm(layer.cross.q_norm)
        kind = list(ACTIVATIONS.values()).index(layer.activation)
        return self.layer_type(own, cross, layer.cross is not None, layer.pre_norm, self._norm(layer.norms[-1]),
                               matrix_of(layer.up), matrix_of(layer.down), layer.gated, kind)

    def _attention(self, part: FastLayer | FastCross, norm: FastNorm, into: Map, out: Map) -> Any:
        heads = part.heads
        return self.attention_type(self._norm(norm), matrix_of(into), matrix_of(out), self.norm_type(), self.norm_type(),
                                   heads.n_heads, heads.n_kv_heads, heads.d_head)

    def _norm(self, norm: FastNorm, row: int | None = None) -> c.Structure:
        """A norm; of one with a gain for each head the gain of one head."""
        gain = norm.gain if norm.gain is None or row is None else norm.gain[row]
        gain, bias = (None if one is None else one.contiguous() for one in (gain, norm.bias))
        self.tensors += [one for one in (gain, bias) if one is not None]
        return self.norm_type(address(gain, self.dtype), address(bias, self.dtype), norm.small, KINDS.index(norm.kind))


def as_cells(kv: KeyValues, end: int, dtype: torch.dtype) -> Cells:
    """What the library is handed of a cache up to `end`; made anew only when its tensors are others."""
    if kv.handed is None or kv.handed[0] is not kv.all or kv.handed[1] is not kv.hidden:
        hidden = kv.hidden
        by_sentence, by_beam = (hidden.stride(n) if hidden.shape[n] > 1 else 0 for n in (0, 1))
        assert kv.all.is_contiguous() and hidden.stride(2) == 1 and kv.all.dtype == hidden.dtype == dtype
        keys = kv.all.data_ptr()
        middle = keys + kv.all.numel() // 2 * kv.all.element_size()
        kv.handed = kv.all, hidden, Cells(keys, middle, hidden.data_ptr(), by_sentence, by_beam, kv.all.shape[4])
    kv.handed[2].end = end
    return kv.handed[2]


def matrix_of(map_: Map) -> Matrix:
    assert isinstance(map_, NativeProduct)
    return map_.matrix


def matrices_of(layer: FastLayer) -> Iterable[NativeProduct]:
    """All matrices of a layer that a step reads."""
    cross = [] if layer.cross is None else [layer.cross.q, layer.cross.out]
    for one in (layer.qkv, layer.out, *cross, layer.up, layer.down):
        assert isinstance(one, NativeProduct)
        yield one
