"""A packed encoder or decoder in torch operations: embedding, positions, layers and norms.

See docs/explanation/performance.md.
"""

from functools import cache

import torch
from torch import Tensor

from qkv.engine.kv_cache import KVCache
from qkv.engine.packed_layers import PackedConvolution, PackedLayer
from qkv.engine.packed_weights import MakeProduct, PackedPositions, packed_norm, product
from qkv.model import spec as s
from qkv.model.attention_context import AttentionContext, position_ids_of
from qkv.model.block import Block, CrossBlock
from qkv.model.mixers import ConvolutionMixer
from qkv.model.transformer import LayerStack


class PackedStack:
    """An encoder or a decoder: embedding, positions, layers and norms."""

    def __init__(
        self,
        stack: LayerStack,
        spec: s.Stack,
        table: Tensor,
        scale: float,
        make: MakeProduct = product,
    ):
        norm = spec.layers[0].norm
        blocks = [block for block in stack.layers if isinstance(block, Block | CrossBlock)]
        first = blocks[0]
        self.convolution: PackedConvolution | None = None
        if isinstance(first, Block) and isinstance(first.attn.branch, ConvolutionMixer):
            self.convolution, blocks = PackedConvolution(first, norm, make), blocks[1:]
        self.layers = [PackedLayer(block, norm, make) for block in blocks]
        self.heads, self.causal = self.layers[0].heads, stack.causal
        self.table, self.scale = table, scale
        self.position_module = stack.positions
        self.positions = PackedPositions(stack, self.heads.d_head, table)
        self.embed_norm = packed_norm(stack.embed_norm, norm)
        self.norm = packed_norm(stack.norm, norm)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        cache: KVCache,
        memory: KVCache | None = None,
    ) -> Tensor:
        """All tokens of (rows, length) ids -> (rows * length, d_model); fills the cache.

        Rows begin at slot 0 and are padded on the right; a causal stack needs no `attention_mask`.
        """
        length = ids.shape[1]
        position_ids = position_ids_of(length, 0, attention_mask, ids.device)
        x = self.position_module(torch.embedding(self.table, ids) * self.scale, position_ids)
        x = self.embed_norm(x).flatten(0, 1)  # (rows * length, d_model)
        if self.convolution is not None:
            assert cache.conv_inputs is not None
            x = self.convolution(x, cache.conv_inputs, 0)
        all_positions = position_ids_of(length, 0, None, ids.device)
        rotation = self.position_module.rotation(all_positions, x.dtype)
        mask = AttentionContext(length, 0, self.causal, attention_mask, device=ids.device).mask()
        memories = [None] * len(self.layers) if memory is None else memory.layer_views()
        for n, (layer, layer_memory) in enumerate(zip(self.layers, memories, strict=True)):
            store = cache.store[:, n, :, :, :length]
            x = layer.forward(x, store, rotation, mask, layer_memory)
        return x

    def step(
        self,
        ids: Tensor,
        positions: int | Tensor,
        slots: Tensor | None,
        cache: KVCache,
        memory: KVCache | None,
    ) -> Tensor:
        """The new token of each row, (rows,), through all layers, (rows, d_model).

        Rows at one position take the next slots of the cache (`slots` is None); otherwise each row
        has its own position and slot.
        """
        beams = len(ids) // cache.sequences
        x = self.positions.add(torch.embedding(self.table, ids), positions, self.scale)
        x = self.embed_norm(x)
        new_slots = cache.take_slots(slots, beams)
        if self.convolution is not None:
            assert cache.conv_inputs is not None
            x = self.convolution(x, cache.conv_inputs, new_slots)
        memories = [None] * len(self.layers) if memory is None else memory.layer_views()
        rotation, views = self.positions.rotation(positions), cache.layer_views()
        layers = zip(self.layers, cache.store.unbind(1), views, memories, strict=True)
        for layer, store, kv, layer_memory in layers:
            x = layer.step(x, (store, new_slots), kv, rotation, layer_memory)
        return x


@cache
def is_packable(spec: s.Stack, convolution: bool = False) -> bool:
    """Whether all blocks are equal and supported; with `convolution` the first may be one."""
    first, layer = spec.layers[0], spec.layers[-1]
    adjacent = isinstance(first.mixer, s.Convolution) and first.mixer.dilation == 1
    has_convolution = convolution and adjacent and first.repeat == 1
    return (
        len(spec.layers) == 1 + has_convolution
        and isinstance(layer.mixer, s.Attention)
        and layer.mixer.window is None
        and first.norm == layer.norm
        and first.residual
        and layer.residual
        and layer.norm.kind != "batch"
        and all(isinstance(part.feed_forward, s.Dense | s.Gated) for part in (first, layer))
    )
