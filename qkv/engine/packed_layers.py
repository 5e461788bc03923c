"""Packed layers in torch operations: decode steps, and forward passes over whole sequences.

The native library runs the same packed weights in one call (native_step.py). For a single query two
matrix products are faster than fused attention. See docs/explanation/performance.md.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.engine.kv_cache import LayerKV
from qkv.engine.packed_weights import (
    MakeProduct,
    PackedNorm,
    merged_qkv,
    merged_weights,
    packed_norm,
    product,
    split_gain,
    unit_norm,
)
from qkv.model import spec as s
from qkv.model.attention import CrossAttention, GroupedQueryAttention
from qkv.model.attention_context import AttentionMask
from qkv.model.block import Block, CrossBlock, PreNorm
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.mixers import ConvolutionMixer
from qkv.model.rotary import Rotation

# Slots of the new keys and values: the first one for all sequences, or (rows,).
NewSlots = int | Tensor


class PackedBlock:
    """Common part of all blocks: residual connections and the feed-forward."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: MakeProduct = product):
        assert isinstance(block.ffn, PreNorm)
        ffn, self.pre_norm = block.ffn.branch, norm.placement == "pre"
        assert isinstance(ffn, DenseFeedForward | GatedFeedForward)
        cross = [block.cross] if isinstance(block, CrossBlock) else []
        norms = [sublayer.norm for sublayer in (block.attn, *cross, block.ffn)]
        self.norms = [packed_norm(module, norm) for module in norms]
        self.gains: list[Tensor | None] = [None] * len(norms)
        if self.pre_norm:  # the gain of an RMSNorm is folded into the next matrix
            pairs = [split_gain(module, norm) for module in norms]
            self.norms, self.gains = [norm for norm, _ in pairs], [gain for _, gain in pairs]
        self.gated = isinstance(ffn, GatedFeedForward)
        up = [ffn.gate_proj, ffn.up_proj] if isinstance(ffn, GatedFeedForward) else [ffn.up_proj]
        self.up = make(*merged_weights(up, self.gains[-1]))
        self.down = make(*merged_weights([ffn.down_proj]))
        self.activation = ffn.activation

    def residual(
        self, n: int, x: Tensor, branch: Callable[..., Tensor], *context: object
    ) -> Tensor:
        """x + branch(norm(x)), or norm(x + branch(x)), with the norm of the n-th sublayer."""
        if self.pre_norm:
            return branch(self.norms[n](x), *context).add_(x)
        return self.norms[n](branch(x, *context).add_(x))

    def feed_forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.gated:
            gate, up = up.chunk(2, 1)
            return self.down(self.activation(gate).mul_(up))
        return self.down(self.activation(up))


class PackedLayer(PackedBlock):
    """A block with attention; q, k and v are one matrix."""

    def __init__(self, block: Block | CrossBlock, norm: s.Norm, make: MakeProduct = product):
        super().__init__(block, norm, make)
        attn = block.attn.branch
        assert isinstance(attn, GroupedQueryAttention)
        self.heads = attn.heads
        self.qkv = make(*merged_qkv(attn, self.gains[0]))
        self.out = make(*merged_weights([attn.o_proj]))
        self.head_norm = head_norm(attn) if attn.heads.qk_norm else None
        self.cross: PackedCross | None = None
        if isinstance(block, CrossBlock):
            self.cross = PackedCross(block.cross.branch, self.gains[1], make)

    def step(
        self,
        x: Tensor,
        new: tuple[Tensor, NewSlots],
        kv: LayerKV,
        rotation: Tensor | None,
        memory: LayerKV | None,
    ) -> Tensor:
        """One token per row, (rows, d_model) -> (rows, d_model).

        Args:
            x: The residual stream.
            new: The store of this layer, and the slots of the new keys and values.
            kv: Keys and values to attend to.
            rotation: Rotary embedding as a matrix.
            memory: Keys and values of the encoder.
        """
        x = self.residual(0, x, self.attend, new, kv, rotation)
        if self.cross is not None:
            x = self.residual(1, x, self.cross, memory)
        return self.residual(-1, x, self.feed_forward)

    def forward(
        self,
        x: Tensor,
        store: Tensor,
        rotation: Rotation,
        mask: AttentionMask,
        memory: LayerKV | None,
    ) -> Tensor:
        """All tokens of each row, (rows * length, d_model).

        Keys and values are written to `store`, (2, rows, kv_heads, length, d_head).
        """
        x = self.residual(0, x, self.attend_all, store, rotation, mask)
        if self.cross is not None:
            x = self.residual(1, x, self.cross, memory)  # the tokens of a row as its beams
        return self.residual(-1, x, self.feed_forward)

    def attend(
        self, x: Tensor, new: tuple[Tensor, NewSlots], kv: LayerKV, rotation: Tensor | None
    ) -> Tensor:
        """Attention of one query per row to the cache, its own new key included."""
        n_heads, n_kv_heads, d_head = self.heads.n_heads, self.heads.n_kv_heads, self.heads.d_head
        qkv = self.qkv(x).view(len(x), -1, d_head)  # (rows, heads + 2 kv_heads, d_head)
        qk, v = qkv, qkv.narrow(1, n_heads + n_kv_heads, n_kv_heads)
        if self.head_norm is not None:
            qk = self.head_norm(qk.narrow(1, 0, n_heads + n_kv_heads))
        if rotation is not None:
            matrix = rotation.expand(len(x), d_head, d_head)
            qk = torch.bmm(qk.narrow(1, 0, n_heads + n_kv_heads), matrix)
        write_slots(*new, qk.narrow(1, n_heads, n_kv_heads), v)
        return self.out(attend_slots(qk.narrow(1, 0, n_heads), kv, n_kv_heads))

    def attend_all(
        self, x: Tensor, store: Tensor, rotation: Rotation, mask: AttentionMask
    ) -> Tensor:
        """Attention of all tokens of each row."""
        n_heads, n_kv_heads = self.heads.n_heads, self.heads.n_kv_heads
        qkv = self.qkv(x).view(
            len(x), -1, self.heads.d_head
        )  # (tokens, heads + 2 kv_heads, d_head)
        qk, v = qkv.split((n_heads + n_kv_heads, n_kv_heads), 1)
        if self.head_norm is not None:
            qk = self.head_norm(qk)
        parts = (*qk.split((n_heads, n_kv_heads), 1), v)
        # each (rows, heads, length, d_head)
        q, k, v = (part.unflatten(0, (store.shape[1], -1)).transpose(1, 2) for part in parts)
        q, k = rotation(q), rotation(k)
        store[0].copy_(k)
        store[1].copy_(v)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            mask.allowed,
            is_causal=mask.is_causal,
            scale=1.0,
            enable_gqa=n_heads != n_kv_heads,
        )
        return self.out(mixed.transpose(1, 2).reshape(len(x), -1))


class PackedCross:
    """Cross-attention; the beams of a sequence are several queries to the same memory."""

    def __init__(self, cross: nn.Module, gain: Tensor | None, make: MakeProduct):
        assert isinstance(cross, CrossAttention)
        weight, bias = merged_weights([cross.q_proj], gain)
        scale = 1.0 if cross.heads.qk_norm else cross.scale
        self.heads, self.out = cross.heads, make(*merged_weights([cross.o_proj]))
        self.q = make(weight * scale, None if bias is None else bias * scale)
        self.q_norm = query_norm(cross) if cross.heads.qk_norm else None

    def __call__(self, x: Tensor, memory: LayerKV) -> Tensor:
        q = self.q(x).view(len(x), -1, self.heads.d_head)  # (rows, heads, d_head)
        if self.q_norm is not None:
            q = self.q_norm(q)
        return self.out(attend_slots(q, memory, self.heads.n_kv_heads))


class PackedConvolution(PackedBlock):
    """y_t = sum over the last `kernel_size` positions of W_j x_(t+j), as one matrix product."""

    def __init__(self, block: Block, norm: s.Norm, make: MakeProduct = product):
        super().__init__(block, norm, make)
        mixer = block.attn.branch
        assert isinstance(mixer, ConvolutionMixer) and mixer.conv.bias is not None
        weight = mixer.conv.weight.detach().transpose(1, 2)  # (outputs, kernel_size, d_model)
        weight = weight if self.gains[0] is None else weight * self.gains[0]
        self.kernel_size = weight.shape[1]
        self.out = make(weight.flatten(1), mixer.conv.bias.detach())

    def __call__(self, x: Tensor, inputs: Tensor, slots: NewSlots) -> Tensor:
        """The new tokens of each sequence, (sequences * new, d_model), from these slots on.

        `inputs` are the `conv_inputs` of the cache.
        """
        return self.residual(-1, self.residual(0, x, self.mix, inputs, slots), self.feed_forward)

    def mix(self, x: Tensor, inputs: Tensor, slots: NewSlots) -> Tensor:
        new = x.unflatten(0, (len(inputs), -1))  # (sequences, new, d_model)
        first = torch.as_tensor(slots, device=x.device).expand(len(new))[:, None]  # (sequences, 1)
        offsets = torch.arange(new.shape[1] + self.kernel_size - 1, device=x.device)
        slot = first + offsets  # (sequences, kernel_size - 1 + new)
        sequence = torch.arange(len(new), device=x.device)[:, None]
        inputs[sequence, slot[:, self.kernel_size - 1 :]] = new
        windows = inputs[sequence, slot].unfold(1, self.kernel_size, 1)
        # (sequences, new, d_model, kernel_size) -> (sequences * new, kernel_size * d_model)
        return self.out(windows.transpose(2, 3).reshape(len(x), -1))


def write_slots(store: Tensor, slots: NewSlots, keys: Tensor, values: Tensor) -> None:
    """Write (rows, kv_heads, d_head) to a layer's store, (2, sequences, kv_heads, capacity, d)."""
    if isinstance(slots, Tensor):
        sequence = torch.arange(len(slots), device=slots.device) // (len(slots) // store.shape[1])
        store[0][sequence, :, slots], store[1][sequence, :, slots] = keys, values
        return
    shape = store.shape[1], -1, *keys.shape[1:]  # (sequences, beams, kv_heads, d_head)
    new_keys, new_values = store.narrow(3, slots, len(keys) // store.shape[1])
    new_keys.copy_(keys.view(shape).transpose(1, 2))
    new_values.copy_(values.view(shape).transpose(1, 2))


def attend_slots(q: Tensor, kv: LayerKV, n_kv_heads: int) -> Tensor:
    """softmax(q k^T) v for (rows, heads, d_head) -> (rows, heads * d_head).

    The beams of a sequence and the query heads of a group are queries to one key/value head.
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


def query_norm(attn: GroupedQueryAttention) -> PackedNorm:
    """RMSNorm of queries, divided by sqrt(d_head)."""
    return norm_of_heads(attn, attn.q_norm.get_parameter("weight").detach() * attn.scale)


def head_norm(attn: GroupedQueryAttention) -> PackedNorm:
    """RMSNorm of queries and keys together, (rows, heads + kv_heads, d_head)."""
    q, k = (norm.get_parameter("weight").detach() for norm in (attn.q_norm, attn.k_norm))
    heads = attn.heads
    q_gain, k_gain = (q * attn.scale).expand(heads.n_heads, -1), k.expand(heads.n_kv_heads, -1)
    return norm_of_heads(attn, torch.cat([q_gain, k_gain]))


def norm_of_heads(attn: GroupedQueryAttention, gain: Tensor) -> PackedNorm:
    assert isinstance(attn.q_norm, nn.RMSNorm) and attn.q_norm.eps is not None
    return unit_norm(gain, attn.heads.d_head, attn.q_norm.eps)
