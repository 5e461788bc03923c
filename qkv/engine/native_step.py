"""The native step: all layers of a packed stack in one call of kernels/decode_step.cpp.

It computes what the torch operations of packed_layers.py compute, from the same weights and into
the same cache, batch-invariant to the last bit. See docs/explanation/performance.md.
"""

import ctypes as c
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from qkv.engine.kv_cache import KVCache
from qkv.engine.native_structs import (
    ACTIVATION_CODES,
    STRUCTURES,
    Cache,
    Matrix,
    NormKind,
    Positions,
    Rows,
)
from qkv.engine.packed_layers import PackedConvolution, PackedCross, PackedLayer
from qkv.engine.packed_stack import PackedStack
from qkv.engine.packed_weights import Map, PackedNorm, PositionTables
from qkv.kernels.build import address, library
from qkv.model.transformer import out_of_range
from qkv.threads import inference_threads_for

TWO_THREADS_MIN_PRODUCTS = 1 << 19  # multiplications of a step: with fewer, one thread is faster


# ── Matrices ─────────────────────────────────────────────────────────────────────────────────────
class NativeProduct:
    """x W^T + b for (rows, inputs); W is stored in panels, (panels, inputs, panel width).

    The last panel is padded with zeros.
    """

    def __init__(
        self, lib: c.CDLL, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None
    ):
        width = lib.qkv_width()
        self.run = lib.qkv_product
        self.panels = to_panels(weight, width)
        self.vectors = [
            None if vector is None else to_panels(vector[:, None], width)
            for vector in (scales, bias)
        ]
        # The structure points to these tensors.
        self.matrix = Matrix(address(self.panels), *map(address, self.vectors), *weight.shape)
        self.size, self.dtype = weight.numel(), (weight if scales is None else scales).dtype

    def __call__(self, x: Tensor) -> Tensor:
        x, out = x.contiguous(), x.new_empty(len(x), self.matrix.outputs)
        threads = inference_threads_for(len(x) * self.size, TWO_THREADS_MIN_PRODUCTS)
        inputs, outputs = address(x, self.dtype), address(out, self.dtype)
        self.run(c.byref(self.matrix), inputs, len(x), threads, outputs)
        return out


def native_product(weight: Tensor, bias: Tensor | None) -> Map:
    lib = library(weight.dtype)
    assert lib is not None
    return NativeProduct(lib, weight, bias)


def native_int8_product(weight: Tensor, bias: Tensor | None) -> Map:
    """Weight-only int8 quantization with one scale per output; activations are not quantized."""
    lib = library(weight.dtype)
    assert lib is not None
    scales = weight.abs().amax(dim=1).clamp_min(1e-12) / 127
    return NativeProduct(lib, (weight / scales[:, None]).round().to(torch.int8), bias, scales)


def to_panels(weight: Tensor, width: int) -> Tensor:
    """(outputs, inputs) -> (panels, inputs, width)."""
    outputs, inputs = weight.shape
    padded = weight.new_zeros(-(-outputs // width) * width, inputs)
    padded[:outputs] = weight
    return padded.view(-1, width, inputs).transpose(1, 2).contiguous()


# ── The step ─────────────────────────────────────────────────────────────────────────────────────
class NativeStep:
    """A stack whose matrices are NativeProducts, its last norm, and the output projection."""

    def __init__(self, stack: PackedStack, norm: PackedNorm, head: NativeProduct):
        table = stack.table.contiguous()
        self.norm_type, self.attention_type, self.layer_type, model_type = STRUCTURES[table.dtype]
        lib = library(table.dtype)
        assert lib is not None
        self.run, self.run.restype = lib.qkv_step, c.c_int
        self.dtype, self.positions, self.outputs = table.dtype, stack.positions, head.matrix.outputs
        self.tensors: list[Tensor] = [table]  # that the structures point to
        self.tables: tuple[PositionTables, Positions] | None = None
        blocks: list[PackedLayer | PackedConvolution] = []
        if stack.convolution:
            blocks.append(stack.convolution)
        blocks += stack.layers
        layers = (self.layer_type * len(blocks))(*map(self._layer, blocks))
        products = [product for block in blocks for product in products_of(block)]
        widths = [max(product.matrix.outputs, product.matrix.inputs) for product in products]
        self.size = sum(product.size for product in products) + head.size
        self.model = model_type(
            layers,
            len(blocks),
            table.shape[1],
            max(widths),
            table.data_ptr(),
            len(table),
            stack.scale,
            self._norm(stack.embed_norm),
            self._norm(norm),
            head.matrix,
        )
        self.references = blocks, head, layers  # own the memory that the structures point to

    def __call__(
        self,
        ids: Tensor,
        rows: Tensor,
        cache: KVCache,
        memory: KVCache | None = None,
        outputs: Tensor | None = None,
        advance: int = 0,
    ) -> Tensor:
        """Token ids (n,) of the rows (4, n) -> logits (n, vocab), or of the rows `outputs` only.

        If `advance` is not 0, `rows` are moved to the next token, `advance` slots further. The
        cache must have free slots for them.
        """
        n = ids.shape[0]  # len(ids) takes microseconds
        n_outputs = n if outputs is None else outputs.shape[0]
        logits = torch.empty(n_outputs, self.outputs, dtype=self.dtype)
        assert rows.is_contiguous() and rows.dtype == torch.int32 and rows.shape == (4, n)
        assert ids.dtype == torch.int64 and ids.is_contiguous()
        lines = range(rows.data_ptr(), rows.data_ptr() + 16 * n, 4 * n)  # addresses of the 4 lines
        outputs_pointer = None if outputs is None else outputs.data_ptr()
        row_struct = Rows(ids.data_ptr(), *lines, outputs_pointer, n, n_outputs, advance)
        memory_pointer = None if memory is None else c.byref(native_cache(memory, self.dtype))
        cache_struct = native_cache(cache, self.dtype)
        threads = inference_threads_for(n * self.size, TWO_THREADS_MIN_PRODUCTS)
        if self.run(
            c.byref(self.model),
            c.byref(self._positions(cache.capacity)),
            c.byref(row_struct),
            c.byref(cache_struct),
            memory_pointer,
            threads,
            logits.data_ptr(),
        ):
            raise out_of_range("ids", ids, self.model.vocab)
        return logits

    def _positions(self, capacity: int) -> Positions:
        """Tables for all positions of a cache, or for all positions of the model."""
        length = min(capacity, self.positions.limit or capacity)
        if self.tables is None or self.tables[0].length < length:
            tables = self.positions.up_to(length)
            half = 0 if tables.cos is None else tables.cos.shape[1]
            addresses = (address(table, self.dtype) for table in tables[1:])
            self.tables = tables, Positions(*addresses, half, self.positions.interleaved)
        return self.tables[1]

    def _layer(self, block: PackedLayer | PackedConvolution) -> c.Structure:
        attention, cross = self.attention_type(), self.attention_type()
        attention.norm, attention.out = self._norm(block.norms[0]), matrix_of(block.out)
        has_cross, kernel_size = False, 0
        if isinstance(block, PackedConvolution):
            kernel_size = block.kernel_size
        else:
            self._fill(attention, block, block.qkv)
            if block.head_norm is not None:
                attention.q_norm = self._norm(block.head_norm, 0)
                attention.k_norm = self._norm(block.head_norm, block.heads.n_heads)
            if block.cross is not None:
                has_cross = True
                cross.norm, cross.out = self._norm(block.norms[1]), matrix_of(block.cross.out)
                self._fill(cross, block.cross, block.cross.q)
                if block.cross.q_norm is not None:
                    cross.q_norm = self._norm(block.cross.q_norm)
        return self.layer_type(
            attention,
            cross,
            has_cross,
            block.pre_norm,
            self._norm(block.norms[-1]),
            matrix_of(block.up),
            matrix_of(block.down),
            block.gated,
            ACTIVATION_CODES[block.activation],
            kernel_size,
        )

    def _fill(self, attention: Any, part: PackedLayer | PackedCross, projection: Map) -> None:
        attention.in_, attention.heads = matrix_of(projection), part.heads.n_heads
        attention.kv_heads, attention.d_head = part.heads.n_kv_heads, part.heads.d_head

    def _norm(self, norm: PackedNorm, head: int | None = None) -> c.Structure:
        """The structure of a norm; `head` selects a row of a gain (heads, d_head)."""
        gain = norm.gain if norm.gain is None or head is None else norm.gain[head]
        gain, bias = (
            None if vector is None else vector.contiguous() for vector in (gain, norm.bias)
        )
        self.tensors += [vector for vector in (gain, bias) if vector is not None]
        addresses = address(gain, self.dtype), address(bias, self.dtype)
        return self.norm_type(*addresses, norm.eps, NormKind[norm.kind.upper()])


def native_cache(cache: KVCache, dtype: torch.dtype) -> Cache:
    """The structure of a cache, rebuilt only when its tensors change; without beams no mask."""
    store, mask = cache.store, cache.mask
    if cache.native is None or cache.native[0] is not store or cache.native[1] is not mask:
        assert store.is_contiguous() and store.dtype == dtype
        assert not cache.masked or (mask.is_contiguous() and len(mask) == cache.sequences)
        keys = store.data_ptr()
        values = keys + store.numel() // 2 * store.element_size()
        struct = Cache(
            keys,
            values,
            None if cache.conv_inputs is None else cache.conv_inputs.data_ptr(),
            mask.data_ptr() if cache.masked else None,
            None if cache.lengths is None else cache.lengths.data_ptr(),
            cache.sequences,
            cache.capacity,
        )
        cache.native = store, mask, struct
    return cache.native[2]


def matrix_of(product: Map) -> Matrix:
    assert isinstance(product, NativeProduct)
    return product.matrix


def products_of(block: PackedLayer | PackedConvolution) -> Iterable[NativeProduct]:
    """All matrix products of a block in a step."""
    products = [block.out, block.up, block.down]
    if isinstance(block, PackedLayer):
        products.append(block.qkv)
        if block.cross is not None:
            products += [block.cross.q, block.cross.out]
    for product in products:
        assert isinstance(product, NativeProduct)
        yield product
