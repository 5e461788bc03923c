"""The packed encoder for many sentences: tokens of all sentences end to end, so that padding is never computed.

In: ids of sentences one after the other, those of one length side by side. Out: a vector for each token, equal to the
model's own (tests/engine/test_encoder.py). Explained in docs/embedding.md, "Use".
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.engine.packed_weights import Map, activated_product, joined, version_of
from qkv.model import spec as s
from qkv.model.attention import FusedCore, GroupedAttention
from qkv.model.block import Block
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.positions import LearnedPositions, SinusoidalPositions
from qkv.model.transformer import Memory, Transformer, out_of_range
from qkv.model.turn import NoTurn, Turn

FIRST_POSITIONS = 64  # computed at the start; more when a longer sentence comes

Groups = Sequence[tuple[int, int]]  # (sentences, tokens of each), in the order of the ids


class Encoder(Protocol):
    """(tokens,) ids of sentences laid end to end -> (tokens, d_model)."""

    def __call__(self, ids: Tensor, groups: Groups) -> Tensor: ...


class PlainEncoder:
    """The plain way, for encoders of any kind: the model's own encode, one length at a time."""

    def __init__(self, model: Transformer):
        self.model = model

    def __call__(self, ids: Tensor, groups: Groups) -> Tensor:
        parts = ids.split([rows * length for rows, length in groups])
        shapes = zip(parts, groups, strict=True)
        return torch.cat(
            [self.model.encode(part.view(shape)).states.flatten(0, 1) for part, shape in shapes]
        )


class PackedEncoderLayer:
    """One block: its weights, those that read the same input side by side."""

    def __init__(self, block: Block, layer: s.Layer):
        attn, wide = block.attn.branch, block.ffn.branch
        assert isinstance(attn, GroupedAttention) and isinstance(
            wide, DenseFeedForward | GatedFeedForward
        )
        self.heads, self.pre_norm = attn.heads, layer.norm.place == "pre"
        self.split = (attn.heads.n_heads, attn.heads.n_kv_heads, attn.heads.n_kv_heads)
        self.qkv, self.out = joined(attn.q_proj, attn.k_proj, attn.v_proj), joined(attn.o_proj)
        self.q_norm, self.k_norm = attn.q_norm, attn.k_norm
        self.down = joined(wide.down_proj)
        if isinstance(wide, GatedFeedForward):
            gate, up, activation = joined(wide.gate_proj), joined(wide.up_proj), wide.activation
            self.widen: Map = lambda x: activation(gate(x)).mul_(up(x))
        else:
            self.widen = activated_product(wide.up_proj, wide.activation)
        self.norms = block.attn.norm, block.ffn.norm

    def __call__(self, x: Tensor, groups: Groups, turn: Turn) -> Tensor:
        first, second = self.norms
        if self.pre_norm:
            x = self.attend(first(x), groups, turn).add_(x)
            return self.feed_forward(second(x)).add_(x)
        x = first(self.attend(x, groups, turn).add_(x))
        return second(self.feed_forward(x).add_(x))

    def attend(self, x: Tensor, groups: Groups, turn: Turn) -> Tensor:
        """What each token gathers from its own sentence."""
        qkv = self.qkv(x).view(len(x), sum(self.split), -1)  # (tokens, all heads, d_head)
        if self.heads.qk_norm or not isinstance(turn, NoTurn):
            q, k, v = qkv.split(self.split, 1)
            qkv = torch.cat([turn(self.q_norm(q)), turn(self.k_norm(k)), v], dim=1)
        if len(groups) == 1:
            return self.out(self.mix(qkv, groups[0]))
        parts = zip(qkv.split([rows * length for rows, length in groups]), groups, strict=True)
        return self.out(
            torch.cat([self.mix(part, shape) for part, shape in parts])
        )  # (tokens, d_model)

    def mix(self, qkv: Tensor, shape: tuple[int, int]) -> Tensor:
        """Attention in sentences of one length: nothing to hide, so the fused kernel needs no mask."""
        q, k, v = (
            qkv.view(*shape, *qkv.shape[1:]).transpose(1, 2).split(self.split, 1)
        )  # (rows, heads, length, d_head)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=self.split[0] != self.split[1])
        return mixed.transpose(1, 2).reshape(len(qkv), -1)  # (tokens, heads * d_head)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward."""
        return self.down(self.widen(x))


class PackedEncoder:
    """A model's encoder as few large operations; made once for a model and anew when its weights change."""

    def __init__(self, model: Transformer):
        assert model.encoder is not None and model.spec.encoder is not None
        blocks = zip(model.encoder.layers, model.spec.encoder.each_layer(), strict=True)
        self.layers = [
            PackedEncoderLayer(block, layer) for block, layer in blocks if isinstance(block, Block)
        ]
        self.encoder, self.scale = model.encoder, model.scale
        self.table = (
            model.embed if model.source_embed is None else model.source_embed
        ).weight.detach()
        self.type = None if model.type_embed is None else model.type_embed.weight.detach()[0]
        self.parameters = list(model.parameters())
        self.version = version_of(self.parameters)
        self.plan = self._make_plan(FIRST_POSITIONS)

    @staticmethod
    def of(model: Transformer) -> "PackedEncoder":
        """The joined weights of a model, kept as long as the model's own stay the same."""
        kept = _kept.get(model)
        if (
            kept is None
            or kept.parameters[0] is not model.embed.weight
            or kept.version != version_of(kept.parameters)
        ):
            kept = _kept[model] = PackedEncoder(model)
        return kept

    def _make_plan(self, places: int) -> "Plan":
        """The plan for all places up to a number."""
        positions, limit = self.encoder.positions, self.encoder.limit
        all_places = torch.arange(min(places, limit or places), device=self.table.device)[None]
        nothing = self.table.new_zeros(1, all_places.shape[1], self.table.shape[1])
        added = positions(nothing, all_places)[0]  # (places, d_model)
        adds = self.type is not None or isinstance(
            positions, LearnedPositions | SinusoidalPositions
        )
        return Plan(
            added if self.type is None else added + self.type,
            adds,
            positions.turn(all_places, self.table.dtype),
        )

    def _plan_for(self, longest: int) -> "Plan":
        """Read and put in place as one: other threads encode with it too."""
        plan = self.plan
        if longest > len(plan.added):
            plan = self.plan = self._make_plan(max(longest, 2 * len(plan.added)))
        assert longest <= len(plan.added), "a sentence is longer than the model counts"
        return plan

    def __call__(self, ids: Tensor, groups: Groups) -> Tensor:
        plan, places = (
            self._plan_for(max(length for _, length in groups)),
            places_in(groups, ids.device),
        )
        x = self._look_up(ids)  # (tokens, d_model)
        if plan.adds:
            x = torch.add(plan.added[places], x, alpha=self.scale)
        elif self.scale != 1.0:
            x = x * self.scale
        x, turn = self.encoder.embed_norm(x), plan.turn_at(places)
        for layer in self.layers:
            x = layer(x, groups, turn)
        return self.encoder.norm(x)

    def _look_up(self, ids: Tensor) -> Tensor:
        try:
            return F.embedding(ids, self.table)
        except IndexError:
            raise out_of_range("ids", ids, len(self.table)) from None


class Plan(NamedTuple):
    """What each place adds to an embedding, and how it turns queries and keys."""

    added: Tensor  # (places, d_model)
    adds: bool  # False: what is added is zeros
    turn: Turn  # of all places

    def turn_at(self, places: Tensor) -> Turn:
        if isinstance(self.turn, NoTurn):
            return self.turn
        return type(self.turn)(
            self.turn.cos[0, 0][places][:, None], self.turn.sin[0, 0][places][:, None]
        )


_kept: WeakKeyDictionary[Transformer, PackedEncoder] = WeakKeyDictionary()


def make_encoder(model: Transformer) -> Encoder:
    """The fast one where every block is of the common kind, else the plain one."""
    return PackedEncoder.of(model) if supports_encoder(model) else PlainEncoder(model)


def supports_encoder(model: Transformer) -> bool:
    """Whether every encoder block is of the common kind: full attention and a plain feed-forward, not being recorded."""
    if model.encoder is None or model.spec.encoder is None or model.spec.encoder.sees != "all":
        return False
    layers = model.spec.encoder.layers
    return all(
        isinstance(layer.mixer, s.Heads)
        and layer.mixer.window is None
        and layer.cross is None
        and not isinstance(layer.feed_forward, s.Experts)
        for layer in layers
    ) and all(
        isinstance(block, Block) and isinstance(block.attn.branch.core, FusedCore)
        for block in model.encoder.layers
    )


def encode(model: Transformer, ids: Tensor, real: Tensor | None = None) -> Memory:
    """As model.encode: (batch, source) ids to a memory; what stands at padding is zeros."""
    encoder = make_encoder(model)
    if real is None or bool(real.all()):
        return Memory(encoder(ids.flatten(), [(len(ids), ids.shape[1])]).view(*ids.shape, -1), real)
    sizes = real.sum(dim=1)
    order = sizes.argsort()
    states = encoder(ids[order][real[order]], groups_of(sizes[order].tolist()))  # (tokens, d_model)
    padded = states.new_zeros(*ids.shape, states.shape[1])
    padded[order[:, None].expand_as(real)[real[order]], real[order].nonzero()[:, 1]] = states
    return Memory(padded, real)


def groups_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Sentences of one length side by side: groups_of([2, 2, 5]) == [(2, 2), (1, 5)]; empty ones take no room."""
    return [(len(list(some)), length) for length, some in groupby(lengths) if length]


def places_in(groups: Groups, device: torch.device) -> Tensor:
    """The place of each token in its sentence, (tokens,)."""
    parts = [torch.arange(length, device=device).repeat(rows) for rows, length in groups]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
