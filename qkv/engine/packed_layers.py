"""The layers of a stack as few large torch operations: for one new token per row, or for whole rows at once.

In: (rows, d_model). Out: the same, one or all blocks further; equal to the model's own (tests/engine/test_stepper.py).
The native library runs the same packed weights in one call (native_step.py). For one query two plain products are
cheaper than the fused attention. Explained in docs/performance.md, "Decoding".
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.engine.kv_cache import KVCache, LayerKV
from qkv.engine.packed_weights import (
    Make,
    PackedNorm,
    PackedPositions,
    open_norm,
    packed_norm,
    product,
    stacked,
    stacked_qkv,
    unit_norm,
)
from qkv.model import spec as s
from qkv.model.attention import CrossAttention, GroupedAttention
from qkv.model.block import Block, CrossBlock
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.mixers import ConvolutionMixer
from qkv.model.transformer import LayerStack
from qkv.model.turn import Turn
from qkv.model.view import Sight, View, places_of

NewSlots = (
    int | Tensor
)  # where the keys and values of a step go: in all sequences from this slot on, or each row's own


class PackedBlock:
    """What all blocks share: residuals, and the feed-forward as the last of them."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: Make = product):
        wide, self.pre_norm = block.ffn.branch, norm.place == "pre"
        assert isinstance(wide, DenseFeedForward | GatedFeedForward)
        parts = (
            [block.attn, block.cross, block.ffn]
            if isinstance(block, CrossBlock)
            else [block.attn, block.ffn]
        )
        # Before a matrix the gain of an RMSNorm is multiplied into it; after the sum it has to be applied.
        opened = [
            open_norm(part.norm, norm) if self.pre_norm else (packed_norm(part.norm, norm), None)
            for part in parts
        ]
        self.norms, self.gains = [packed for packed, _ in opened], [gain for _, gain in opened]
        self.gated = isinstance(wide, GatedFeedForward)
        up = (
            [wide.gate_proj, wide.up_proj] if isinstance(wide, GatedFeedForward) else [wide.up_proj]
        )
        self.up, self.down, self.activation = (
            make(*stacked(up, self.gains[-1])),
            make(*stacked([wide.down_proj])),
            wide.activation,
        )

    def residual(
        self, n: int, x: Tensor, branch: Callable[..., Tensor], *context: object
    ) -> Tensor:
        """x + branch(norm(x)), or norm(x + branch(x)) with the norm of the n-th branch."""
        if self.pre_norm:
            return branch(self.norms[n](x), *context).add_(x)
        return self.norms[n](branch(x, *context).add_(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        wide = self.up(x)
        if self.gated:
            gate, wide = wide.chunk(2, 1)
            return self.down(self.activation(gate).mul_(wide))
        return self.down(self.activation(wide))


class PackedLayer(PackedBlock):
    """A block with attention: the weights that read the same input side by side."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: Make = product):
        super().__init__(block, norm, make)
        attn = block.attn.branch
        assert isinstance(attn, GroupedAttention)
        self.heads, self.qkv, self.out = (
            attn.heads,
            make(*stacked_qkv(attn, self.gains[0])),
            make(*stacked([attn.o_proj])),
        )
        self.head_norm = head_norm(attn) if attn.heads.qk_norm else None
        self.cross = (
            PackedCross(block.cross.branch, self.gains[1], make)
            if isinstance(block, CrossBlock)
            else None
        )

    def step(
        self,
        x: Tensor,
        new: tuple[Tensor, NewSlots],
        kv: LayerKV,
        rotation: Tensor | None,
        memory: LayerKV | None,
    ) -> Tensor:
        """One token of each row, (rows, d_model); `memory` is the encoder's."""
        x = self.residual(0, x, self.attend, new, kv, rotation)
        if self.cross is not None:
            x = self.residual(1, x, self.cross, memory)
        return self.residual(-1, x, self.feed_forward)

    def read(
        self, x: Tensor, store: Tensor, turn: Turn, sight: Sight, memory: LayerKV | None
    ) -> Tensor:
        """All tokens of each row, (rows * length, d_model); keys and values go into `store` (2, rows, kv_heads, length, d)."""
        x = self.residual(0, x, self.attend_all, store, turn, sight)
        if self.cross is not None:
            x = self.residual(1, x, self.cross, memory)  # the tokens of a row as its beams
        return self.residual(-1, x, self.feed_forward)

    def attend(
        self, x: Tensor, new: tuple[Tensor, NewSlots], kv: LayerKV, rotation: Tensor | None
    ) -> Tensor:
        """Attention of one query per row to the cache, its own new key included."""
        n_heads, n_kv_heads, d_head = self.heads.n_heads, self.heads.n_kv_heads, self.heads.d_head
        both = made = self.qkv(x).view(len(x), -1, d_head)  # (rows, heads + 2 kv_heads, d_head)
        if self.head_norm is not None:
            both = self.head_norm(both.narrow(1, 0, n_heads + n_kv_heads))
        if rotation is not None:
            both = torch.bmm(
                both.narrow(1, 0, n_heads + n_kv_heads), rotation.expand(len(x), d_head, d_head)
            )
        write_slots(
            *new,
            both.narrow(1, n_heads, n_kv_heads),
            made.narrow(1, n_heads + n_kv_heads, n_kv_heads),
        )
        return self.out(attend_slots(both.narrow(1, 0, n_heads), kv, n_kv_heads))

    def attend_all(self, x: Tensor, store: Tensor, turn: Turn, sight: Sight) -> Tensor:
        """Attention of each token to its row."""
        n_heads, n_kv_heads = self.heads.n_heads, self.heads.n_kv_heads
        made = self.qkv(x).view(
            len(x), -1, self.heads.d_head
        )  # (tokens, heads + 2 kv_heads, d_head)
        both, v = made.split((n_heads + n_kv_heads, n_kv_heads), 1)
        if self.head_norm is not None:
            both = self.head_norm(both)
        parts = (*both.split((n_heads, n_kv_heads), 1), v)
        q, k, v = (
            part.unflatten(0, (store.shape[1], -1)).transpose(1, 2) for part in parts
        )  # (rows, heads, length, d_head)
        q, k = turn(q), turn(k)
        store[0].copy_(k)
        store[1].copy_(v)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            sight.visible,
            is_causal=sight.causal,
            scale=1.0,
            enable_gqa=n_heads != n_kv_heads,
        )
        return self.out(mixed.transpose(1, 2).reshape(len(x), -1))


class PackedCross:
    """Cross-attention: the beams of a sequence are several queries to its one memory."""

    def __init__(self, cross: nn.Module, gain: Tensor | None, make: Make):
        assert isinstance(cross, CrossAttention)
        weight, bias = stacked([cross.q_proj], gain)
        scale = 1.0 if cross.heads.qk_norm else cross.scale
        self.heads, self.out = cross.heads, make(*stacked([cross.o_proj]))
        self.q = make(weight * scale, None if bias is None else bias * scale)
        self.q_norm = query_norm(cross) if cross.heads.qk_norm else None

    def __call__(self, x: Tensor, memory: LayerKV) -> Tensor:
        q = self.q(x).view(len(x), -1, self.heads.d_head)  # (rows, heads, d_head)
        if self.q_norm is not None:
            q = self.q_norm(q)
        return self.out(attend_slots(q, memory, self.heads.n_kv_heads))


class PackedConvolution(PackedBlock):
    """y_t = sum over the last `taps` positions of W_j x_(t+j): their vectors side by side, times all W_j in one matrix."""

    def __init__(self, block: Block, norm: s.Norm, make: Make = product):
        super().__init__(block, norm, make)
        mixer = block.attn.branch
        assert isinstance(mixer, ConvolutionMixer) and mixer.conv.bias is not None
        weight = mixer.conv.weight.detach().transpose(1, 2)  # (outputs, taps, d_model)
        weight = weight if self.gains[0] is None else weight * self.gains[0]
        self.taps, self.out = weight.shape[1], make(weight.flatten(1), mixer.conv.bias.detach())

    def __call__(self, x: Tensor, inputs: Tensor, slots: NewSlots) -> Tensor:
        """New tokens of each sequence, (sequences * new, d_model), from these slots on; `inputs` are the cache's."""
        return self.residual(-1, self.residual(0, x, self.mix, inputs, slots), self.feed_forward)

    def mix(self, x: Tensor, inputs: Tensor, slots: NewSlots) -> Tensor:
        new = x.unflatten(0, (len(inputs), -1))  # (sequences, new, d_model)
        first = torch.as_tensor(slots, device=x.device).expand(len(new))[:, None]  # (sequences, 1)
        at = first + torch.arange(
            new.shape[1] + self.taps - 1, device=x.device
        )  # (sequences, taps - 1 + new)
        sequence = torch.arange(len(new), device=x.device)[:, None]
        inputs[sequence, at[:, self.taps - 1 :]] = new
        near = inputs[sequence, at].unfold(1, self.taps, 1)  # (sequences, new, d_model, taps)
        return self.out(near.transpose(2, 3).reshape(len(x), -1))


class PackedStack:
    """An encoder or a decoder: its layers, and what comes before and after them."""

    def __init__(
        self, stack: LayerStack, spec: s.Stack, table: Tensor, scale: float, make: Make = product
    ):
        norm, blocks = (
            spec.layers[0].norm,
            [block for block in stack.layers if isinstance(block, Block | CrossBlock)],
        )
        first = blocks[0]
        is_convolution = isinstance(first, Block) and isinstance(
            first.attn.branch, ConvolutionMixer
        )
        self.convolution = (
            PackedConvolution(first, norm, make)
            if is_convolution and isinstance(first, Block)
            else None
        )
        self.layers = [PackedLayer(block, norm, make) for block in blocks[is_convolution:]]
        self.heads, self.table, self.scale, self.sees = (
            self.layers[0].heads,
            table,
            scale,
            stack.sees,
        )
        self.rule, self.positions = (
            stack.positions,
            PackedPositions(stack, self.heads.d_head, table),
        )
        self.embed_norm, self.norm = (
            packed_norm(stack.embed_norm, norm),
            packed_norm(stack.norm, norm),
        )

    def new_cache(self, sequences: int, capacity: int) -> KVCache:
        shape = len(self.layers), sequences, self.heads.n_kv_heads, capacity, self.heads.d_head
        return KVCache.empty(
            shape, self.table, 0 if self.convolution is None else self.convolution.taps
        )

    def read(
        self, ids: Tensor, real: Tensor | None, cache: KVCache, memory: KVCache | None = None
    ) -> Tensor:
        """All tokens of (rows, length) ids to the stream after the layers, (rows * length, d_model); fills the cache.

        Rows begin at slot 0 and may have padding at their end; a causal stack needs no `real` for it.
        """
        length = ids.shape[1]
        places = places_of(length, 0, real, ids.device)
        x = self.rule(torch.embedding(self.table, ids) * self.scale, places)
        x = self.embed_norm(x).flatten(0, 1)  # (rows * length, d_model)
        if self.convolution is not None:
            assert cache.conv_inputs is not None
            x = self.convolution(x, cache.conv_inputs, 0)
        turn = self.rule.turn(places_of(length, 0, None, ids.device), x.dtype)
        sight = View(length, 0, self.sees, real, device=ids.device).sight()
        memories = [None] * len(self.layers) if memory is None else memory.views
        for n, (layer, remembered) in enumerate(zip(self.layers, memories, strict=True)):
            x = layer.read(x, cache.store[:, n, :, :, :length], turn, sight, remembered)
        return x

    def step(
        self,
        ids: Tensor,
        positions: int | Tensor,
        slots: Tensor | None,
        cache: KVCache,
        memory: KVCache | None,
    ) -> Tensor:
        """The newest token of each row, (rows,), through all layers, (rows, d_model).

        Rows at one position take the next slots of the cache (`slots` None); else each row has its own position and slot.
        """
        beams = len(ids) // cache.sequences
        x = self.embed_norm(
            self.positions.add(torch.embedding(self.table, ids), positions, self.scale)
        )
        new_slots, views = cache.next(slots, beams)
        if self.convolution is not None:
            assert cache.conv_inputs is not None
            x = self.convolution(x, cache.conv_inputs, new_slots)
        memories = [None] * len(self.layers) if memory is None else memory.views
        rotation = self.positions.rotation(positions)
        stores = cache.store.unbind(1)
        for layer, store, kv, remembered in zip(self.layers, stores, views, memories, strict=True):
            x = layer.step(x, (store, new_slots), kv, rotation, remembered)
        return x


def write_slots(store: Tensor, slots: NewSlots, keys: Tensor, values: Tensor) -> None:
    """Put (rows, kv_heads, d_head) into one layer's store, (2, sequences, kv_heads, capacity, d_head)."""
    if isinstance(slots, Tensor):
        sequence = torch.arange(len(slots), device=slots.device) // (len(slots) // store.shape[1])
        store[0][sequence, :, slots], store[1][sequence, :, slots] = keys, values
        return
    shape = store.shape[1], -1, *keys.shape[1:]  # (sequences, beams, kv_heads, d_head)
    new_keys, new_values = store.narrow(3, slots, len(keys) // store.shape[1])
    new_keys.copy_(keys.view(shape).transpose(1, 2))
    new_values.copy_(values.view(shape).transpose(1, 2))


def attend_slots(q: Tensor, kv: LayerKV, n_kv_heads: int) -> Tensor:
    """softmax(q k^T) v for (rows, heads, d_head), joined to (rows, heads * d_head).

    The beams of a sequence, and the query heads of a group, are several queries to one key/value head.
    """
    rows, n_heads, d_head = q.shape
    sequences, group = len(kv.keys) // n_kv_heads, n_heads // n_kv_heads
    beams = rows // sequences
    if beams > 1:
        q = q.reshape(sequences, beams, n_kv_heads, -1).transpose(1, 2)
    scores = torch.bmm(q.reshape(sequences * n_kv_heads, beams * group, d_head), kv.keys)
    scores.view(sequences, n_kv_heads, beams, group, -1).add_(kv.mask)
    mixed = torch.bmm(scores.softmax(2), kv.values)  # (sequences * kv_heads, beams * group, d)
    if beams > 1:
        mixed = mixed.view(sequences, n_kv_heads, beams, -1).transpose(1, 2)
    return mixed.reshape(rows, -1)


def query_norm(attn: GroupedAttention) -> PackedNorm:
    """RMSNorm of each query, which is also divided by sqrt(d_head)."""
    return norm_of_heads(attn, attn.q_norm.get_parameter("weight").detach() * attn.scale)


def head_norm(attn: GroupedAttention) -> PackedNorm:
    """RMSNorm of queries and keys at once, (rows, heads + kv_heads, d_head)."""
    q, k = (norm.get_parameter("weight").detach() for norm in (attn.q_norm, attn.k_norm))
    heads = attn.heads
    return norm_of_heads(
        attn,
        torch.cat([(q * attn.scale).expand(heads.n_heads, -1), k.expand(heads.n_kv_heads, -1)]),
    )


def norm_of_heads(attn: GroupedAttention, gain: Tensor) -> PackedNorm:
    assert isinstance(attn.q_norm, nn.RMSNorm) and attn.q_norm.eps is not None
    return unit_norm(gain, attn.heads.d_head, attn.q_norm.eps)
