"""Packed encoder: the tokens of a batch concatenated without padding.

Sentences of equal length are adjacent, so that attention runs per length without a mask. The result
equals the model's own. See docs/guides/embeddings.md.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.engine.packed_model import WeightVersions
from qkv.engine.packed_weights import Map, PackedPositions, activated_product, merged_product
from qkv.model import spec as s
from qkv.model.attention import GroupedQueryAttention, SdpaCore
from qkv.model.block import Block, PreNorm
from qkv.model.check_spec import custom_parts
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.rotary import NoRotation, Rotation
from qkv.model.transformer import Transformer, out_of_range

LengthGroups = Sequence[tuple[int, int]]  # (sentences, tokens of each), in the order of the ids


class Encoder(Protocol):
    """(tokens,) ids of concatenated sentences -> (tokens, d_model)."""

    def __call__(self, ids: Tensor, groups: LengthGroups) -> Tensor: ...


class PlainEncoder:
    """The model's own encoder, for every architecture, one length at a time."""

    def __init__(self, model: Transformer):
        self.model = model

    def __call__(self, ids: Tensor, groups: LengthGroups) -> Tensor:
        parts = ids.split([rows * length for rows, length in groups])
        batches = [part.view(shape) for part, shape in zip(parts, groups, strict=True)]
        return torch.cat([self.model.encode(batch).states.flatten(0, 1) for batch in batches])


class PackedEncoderLayer:
    """An encoder block; q, k and v are one matrix."""

    def __init__(self, block: Block, layer: s.Layer):
        assert isinstance(block.ffn, PreNorm)
        attn, ffn = block.attn.branch, block.ffn.branch
        assert isinstance(attn, GroupedQueryAttention)
        assert isinstance(ffn, DenseFeedForward | GatedFeedForward)
        self.heads, self.pre_norm = attn.heads, layer.norm.placement == "pre"
        self.split = (attn.heads.n_heads, attn.heads.n_kv_heads, attn.heads.n_kv_heads)
        self.qkv = merged_product(attn.q_proj, attn.k_proj, attn.v_proj)
        self.out = merged_product(attn.o_proj)
        self.q_norm, self.k_norm = attn.q_norm, attn.k_norm
        self.down = merged_product(ffn.down_proj)
        if isinstance(ffn, GatedFeedForward):
            gate, up = merged_product(ffn.gate_proj), merged_product(ffn.up_proj)
            activation = ffn.activation
            self.up: Map = lambda x: activation(gate(x)).mul_(up(x))
        else:
            self.up = activated_product(ffn.up_proj, ffn.activation)
        self.norms = block.attn.norm, block.ffn.norm

    def __call__(self, x: Tensor, groups: LengthGroups, rotation: Rotation) -> Tensor:
        attn_norm, ffn_norm = self.norms
        if self.pre_norm:
            x = self.attend(attn_norm(x), groups, rotation).add_(x)
            return self.feed_forward(ffn_norm(x)).add_(x)
        x = attn_norm(self.attend(x, groups, rotation).add_(x))
        return ffn_norm(self.feed_forward(x).add_(x))

    def attend(self, x: Tensor, groups: LengthGroups, rotation: Rotation) -> Tensor:
        """Attention of each token to its own sentence."""
        qkv = self.qkv(x).view(len(x), sum(self.split), -1)  # (tokens, all heads, d_head)
        if self.heads.qk_norm or not isinstance(rotation, NoRotation):
            q, k, v = qkv.split(self.split, 1)
            qkv = torch.cat([rotation(self.q_norm(q)), rotation(self.k_norm(k)), v], dim=1)
        if len(groups) == 1:
            return self.out(self.attend_group(qkv, groups[0]))
        parts = zip(qkv.split([rows * length for rows, length in groups]), groups, strict=True)
        mixed = torch.cat([self.attend_group(part, shape) for part, shape in parts])
        return self.out(mixed)  # (tokens, d_model)

    def attend_group(self, qkv: Tensor, shape: tuple[int, int]) -> Tensor:
        """Attention in sentences of one length, by the fused kernel without a mask."""
        # (rows, all heads, length, d_head)
        heads = qkv.view(*shape, *qkv.shape[1:]).transpose(1, 2)
        q, k, v = heads.split(self.split, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.split[0] != self.split[1])
        return mixed.transpose(1, 2).reshape(len(qkv), -1)  # (tokens, heads * d_head)

    def feed_forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x))


class PackedEncoder:
    """The packed encoder of a model, packed again when the model's weights change."""

    def __init__(self, model: Transformer):
        assert model.encoder is not None and model.spec.encoder is not None
        blocks = zip(model.encoder.layers, model.spec.encoder.each_layer(), strict=True)
        self.layers = [
            PackedEncoderLayer(block, layer) for block, layer in blocks if isinstance(block, Block)
        ]
        self.encoder, self.scale = model.encoder, model.scale
        embed = model.embed if model.source_embed is None else model.source_embed
        self.table = embed.weight.detach()
        token_type = None if model.type_embed is None else model.type_embed.weight.detach()[0]
        d_head = self.layers[0].heads.d_head
        self.positions = PackedPositions(model.encoder, d_head, self.table, token_type)
        self.weights = WeightVersions(model)

    @staticmethod
    def of(model: Transformer) -> "PackedEncoder":
        """The packed encoder of a model, cached until the model's weights change."""
        packed = _packed_encoders.get(model)
        if packed is None or not packed.weights.are_current(model):
            packed = _packed_encoders[model] = PackedEncoder(model)
        return packed

    def __call__(self, ids: Tensor, groups: LengthGroups) -> Tensor:
        positions = positions_of(groups, ids.device)
        # (tokens, d_model)
        x = self.encoder.embed_norm(self.positions.add(self._embed(ids), positions, self.scale))
        rotation = self.positions.rotation_of_tokens(positions)
        for layer in self.layers:
            x = layer(x, groups, rotation)
        return self.encoder.norm(x)

    def _embed(self, ids: Tensor) -> Tensor:
        try:
            return F.embedding(ids, self.table)
        except IndexError:
            raise out_of_range("ids", ids, len(self.table)) from None


_packed_encoders: WeakKeyDictionary[Transformer, PackedEncoder] = WeakKeyDictionary()


def make_encoder(model: Transformer) -> Encoder:
    """A packed encoder if the architecture is supported, else the plain one."""
    return PackedEncoder.of(model) if supports_encoder(model) else PlainEncoder(model)


def supports_encoder(model: Transformer) -> bool:
    """Whether all encoder blocks have full attention and no experts, and are not recorded."""
    if model.encoder is None or model.spec.encoder is None or model.spec.encoder.causal:
        return False
    if custom_parts(model.spec) or isinstance(model.spec.positions, s.ALiBi):
        return False
    layers = model.spec.encoder.layers
    return all(
        isinstance(layer.mixer, s.Attention)
        and layer.mixer.window is None
        and layer.cross is None
        and isinstance(layer.feed_forward, s.Dense | s.Gated)
        and layer.residual
        for layer in layers
    ) and all(
        isinstance(block, Block) and isinstance(block.attn.branch.core, SdpaCore)
        for block in model.encoder.layers
    )


def length_groups(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Group adjacent sentences of equal length; empty ones are dropped.

    >>> length_groups([2, 2, 5])
    [(2, 2), (1, 5)]
    """
    return [(len(list(group)), length) for length, group in groupby(lengths) if length]


def positions_of(groups: LengthGroups, device: torch.device) -> Tensor:
    """The position of each token in its sentence, (tokens,)."""
    parts = [torch.arange(length, device=device).repeat(rows) for rows, length in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
