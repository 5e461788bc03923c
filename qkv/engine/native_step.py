"""The native step: all layers of a packed stack in one call of the native library (kernels/decode_step.cpp).

In: a packed stack and the rows of a step. Out: what the torch operations of packed_layers.py give, from the same
weights and into the same cache, batch-invariant to the last bit. Explained in docs/performance.md, "The native library".
"""

import ctypes as c
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from qkv.engine.kv_cache import KVCache
from qkv.engine.packed_layers import PackedConvolution, PackedCross, PackedLayer, PackedStack
from qkv.engine.packed_weights import Map, PackedNorm, PositionTables
from qkv.kernels.build import library
from qkv.kernels.calling import address, inference_threads_for
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.transformer import out_of_range

TWO_THREADS_MIN_PRODUCTS = (
    1 << 19
)  # products of a number and a weight that keep a second thread busy


# ── The codes and structures of kernels/api.h, field by field ────────────────────────────────────────────────────
class NormKind(IntEnum):
    NONE, LAYER, UNIT = 0, 1, 2


class Activation(IntEnum):
    RELU, RELU2, GELU, GELU_TANH, SILU = 0, 1, 2, 3, 4


ACTIVATION_CODES = {ACTIVATIONS[code.name.lower()]: code for code in Activation}
POINTER, INT = c.c_void_p, c.c_int32


class Matrix(c.Structure):
    _fields_ = [
        ("panels", POINTER),
        ("scales", POINTER),
        ("bias", POINTER),
        ("outputs", INT),
        ("inputs", INT),
    ]


class Positions(c.Structure):
    _fields_ = [
        ("added", POINTER),
        ("cos", POINTER),
        ("sin", POINTER),
        ("half", INT),
        ("interleaved", INT),
    ]


class Rows(c.Structure):
    _fields_ = [
        ("ids", POINTER),
        ("sequence", POINTER),
        ("slot", POINTER),
        ("position", POINTER),
        ("end", POINTER),
        ("outputs", POINTER),
        ("n", INT),
        ("n_outputs", INT),
        ("advance", INT),
    ]


class Cache(c.Structure):
    _fields_ = [
        ("keys", POINTER),
        ("values", POINTER),
        ("conv_inputs", POINTER),
        ("mask", POINTER),
        ("lengths", POINTER),
        ("sequences", INT),
        ("capacity", INT),
    ]


def structures(number: Any) -> tuple[type[c.Structure], ...]:
    """Norm, Attention, Layer and Model for numbers of one type."""

    class Norm(c.Structure):
        _fields_ = [("gain", POINTER), ("bias", POINTER), ("eps", number), ("kind", INT)]

    class Attention(c.Structure):
        _fields_ = [
            ("norm", Norm),
            ("into", Matrix),
            ("out", Matrix),
            ("q_norm", Norm),
            ("k_norm", Norm),
            ("heads", INT),
            ("kv_heads", INT),
            ("d_head", INT),
        ]

    class Layer(c.Structure):
        _fields_ = [
            ("self", Attention),
            ("cross", Attention),
            ("has_cross", INT),
            ("pre_norm", INT),
            ("norm", Norm),
            ("up", Matrix),
            ("down", Matrix),
            ("gated", INT),
            ("activation", INT),
            ("taps", INT),
        ]

    class Model(c.Structure):
        _fields_ = [
            ("layers", c.POINTER(Layer)),
            ("n_layers", INT),
            ("d_model", INT),
            ("widest", INT),
            ("table", POINTER),
            ("vocab", INT),
            ("scale", number),
            ("embed_norm", Norm),
            ("norm", Norm),
            ("head", Matrix),
        ]

    return Norm, Attention, Layer, Model


STRUCTURES = {torch.float32: structures(c.c_float), torch.float64: structures(c.c_double)}


# ── Matrices ─────────────────────────────────────────────────────────────────────────────────────────────────────
class NativeProduct:
    """x W^T + b for (rows, width); W stands in panels, (panels, inputs, width of a panel), its last one filled up with zeros."""

    def __init__(
        self, lib: c.CDLL, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None
    ):
        width = lib.qkv_width()
        self.run = lib.qkv_product
        self.panels = panels_of(weight, width)
        self.filled = [
            None if vector is None else panels_of(vector[:, None], width)
            for vector in (scales, bias)
        ]
        self.matrix = Matrix(
            address(self.panels), *map(address, self.filled), *weight.shape
        )  # points into these
        self.size, self.dtype = weight.numel(), (weight if scales is None else scales).dtype

    def __call__(self, x: Tensor) -> Tensor:
        x, out = x.contiguous(), x.new_empty(len(x), self.matrix.outputs)
        threads = inference_threads_for(len(x) * self.size, TWO_THREADS_MIN_PRODUCTS)
        self.run(
            c.byref(self.matrix), address(x, self.dtype), len(x), threads, address(out, self.dtype)
        )
        return out


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
    """A stack whose matrices are NativeProducts, the norm after its layers, and the product that follows."""

    def __init__(self, stack: PackedStack, norm: PackedNorm, head: NativeProduct):
        table = stack.table.contiguous()
        self.norm_type, self.attention_type, self.layer_type, model_type = STRUCTURES[table.dtype]
        lib = library(table.dtype)
        assert lib is not None
        self.run, self.run.restype = lib.qkv_step, c.c_int
        self.dtype, self.positions, self.outputs = table.dtype, stack.positions, head.matrix.outputs
        self.tensors: list[Tensor] = [table]  # what the structures point to
        self.tables: tuple[PositionTables, Positions] | None = None
        blocks: list[PackedLayer | PackedConvolution] = (
            [stack.convolution] if stack.convolution else []
        )
        blocks += stack.layers
        layers = (self.layer_type * len(blocks))(*map(self._layer, blocks))
        matrices = [matrix for block in blocks for matrix in matrices_of(block)]
        widest = max(max(matrix.matrix.outputs, matrix.matrix.inputs) for matrix in matrices)
        self.size = sum(matrix.size for matrix in matrices) + head.size
        self.model = model_type(
            layers,
            len(blocks),
            table.shape[1],
            widest,
            table.data_ptr(),
            len(table),
            stack.scale,
            self._norm(stack.embed_norm),
            self._norm(norm),
            head.matrix,
        )
        self.alive = blocks, head, layers

    def __call__(
        self,
        ids: Tensor,
        rows: Tensor,
        cache: KVCache,
        memory: KVCache | None = None,
        outputs: Tensor | None = None,
        advance: int = 0,
    ) -> Tensor:
        """Token ids (n,) at the rows (4, n) -> (n, vocab), or of the rows `outputs` alone.

        `rows` then stand at the next token, if `advance` slots lead to it. There is room for them in the cache.
        """
        n, n_outputs = len(ids), len(ids) if outputs is None else len(outputs)
        logits = torch.empty(n_outputs, self.outputs, dtype=self.dtype)
        first, by_line = rows.data_ptr(), 4 * n
        assert (
            rows.is_contiguous()
            and rows.dtype == torch.int32
            and rows.shape == (4, n)
            and ids.dtype == torch.int64
        )
        given = Rows(
            address(ids),
            first,
            first + by_line,
            first + 2 * by_line,
            first + 3 * by_line,
            address(outputs),
            n,
            n_outputs,
            advance,
        )
        there = None if memory is None else c.byref(native_cache(memory, self.dtype))
        own = native_cache(cache, self.dtype)
        threads = inference_threads_for(n * self.size, TWO_THREADS_MIN_PRODUCTS)
        if self.run(
            c.byref(self.model),
            c.byref(self._positions(cache.capacity)),
            c.byref(given),
            c.byref(own),
            there,
            threads,
            logits.data_ptr(),
        ):
            raise out_of_range("ids", ids, self.model.vocab)
        return logits

    def _positions(self, capacity: int) -> Positions:
        """The tables of all positions that a cache has slots for, or of all there are."""
        tables = self.positions.up_to(min(capacity, self.positions.limit or capacity))
        if self.tables is None or self.tables[0] is not tables:
            half = 0 if tables.cos is None else tables.cos.shape[1]
            self.tables = (
                tables,
                Positions(
                    *(address(table, self.dtype) for table in tables[1:]),
                    half,
                    self.positions.interleaved,
                ),
            )
        return self.tables[1]

    def _layer(self, block: PackedLayer | PackedConvolution) -> c.Structure:
        own, cross = self.attention_type(), self.attention_type()
        own.norm, own.out, has_cross, taps = (
            self._norm(block.norms[0]),
            matrix_of(block.out),
            False,
            0,
        )
        if isinstance(block, PackedConvolution):
            taps = block.taps
        else:
            self._fill(own, block, block.qkv)
            if block.head_norm is not None:
                own.q_norm, own.k_norm = (
                    self._norm(block.head_norm, 0),
                    self._norm(block.head_norm, block.heads.n_heads),
                )
            if block.cross is not None:
                cross.norm, cross.out, has_cross = (
                    self._norm(block.norms[1]),
                    matrix_of(block.cross.out),
                    True,
                )
                self._fill(cross, block.cross, block.cross.q)
                if block.cross.q_norm is not None:
                    cross.q_norm = self._norm(block.cross.q_norm)
        return self.layer_type(
            own,
            cross,
            has_cross,
            block.pre_norm,
            self._norm(block.norms[-1]),
            matrix_of(block.up),
            matrix_of(block.down),
            block.gated,
            ACTIVATION_CODES[block.activation],
            taps,
        )

    def _fill(self, attention: Any, part: PackedLayer | PackedCross, into: Map) -> None:
        attention.into, heads = matrix_of(into), part.heads
        attention.heads, attention.kv_heads, attention.d_head = (
            heads.n_heads,
            heads.n_kv_heads,
            heads.d_head,
        )

    def _norm(self, norm: PackedNorm, row: int | None = None) -> c.Structure:
        """A norm; of one with a gain for each head the gain of one head."""
        gain = norm.gain if norm.gain is None or row is None else norm.gain[row]
        gain, bias = (
            None if vector is None else vector.contiguous() for vector in (gain, norm.bias)
        )
        self.tensors += [vector for vector in (gain, bias) if vector is not None]
        return self.norm_type(
            address(gain, self.dtype),
            address(bias, self.dtype),
            norm.eps,
            NormKind[norm.kind.upper()],
        )


def native_cache(cache: KVCache, dtype: torch.dtype) -> Cache:
    """The structure for a cache, made anew only when its tensors are others; without beams rows need no mask."""
    if (
        cache.native is None
        or cache.native[0] is not cache.store
        or cache.native[1] is not cache.mask
    ):
        store, mask = cache.store, cache.mask
        assert (
            store.is_contiguous()
            and store.dtype == dtype
            and (not cache.masked or len(mask) == cache.sequences)
        )
        keys = store.data_ptr()
        values = keys + store.numel() // 2 * store.element_size()
        cache.native = (
            store,
            mask,
            Cache(
                keys,
                values,
                address(cache.conv_inputs, dtype),
                address(mask, dtype) if cache.masked else None,
                address(cache.lengths, torch.int32),
                cache.sequences,
                cache.capacity,
            ),
        )
    return cache.native[2]


def matrix_of(map_: Map) -> Matrix:
    assert isinstance(map_, NativeProduct)
    return map_.matrix


def matrices_of(block: PackedLayer | PackedConvolution) -> Iterable[NativeProduct]:
    """All matrices of a block that a step reads."""
    maps = [block.out, block.up, block.down]
    if isinstance(block, PackedLayer):
        maps += [block.qkv] if block.cross is None else [block.qkv, block.cross.q, block.cross.out]
    for map_ in maps:
        assert isinstance(map_, NativeProduct)
        yield map_
