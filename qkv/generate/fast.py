"""The fast step: the same decoder, seen as few large operations for one new token per row.

In: a model, then one id per row and step. Out: logits, equal to the model's own (proven in tests/generate/test_fast.py).
q, k, v (and gate, up) are one product, the cache is written in place, and the beams of a sentence are queries to its one
memory. Told in docs/performance.md, "Decoding".
"""

from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import CrossAttention, FusedCore, GroupedAttention
from qkv.model.block import CrossBlock
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.positions import RotaryPositions
from qkv.model.transformer import Transformer
from qkv.model.turn import HalvesTurn

ROOM = 64  # places of the cache at the start; it doubles when full

Map = Callable[[Tensor], Tensor]


class FastLayer:
    """One block: its weights, those that read the same input side by side."""

    def __init__(self, block: CrossBlock, norm: s.Norm):
        attn, cross, wide = block.attn.branch, block.cross.branch, block.ffn.branch
        assert isinstance(attn, GroupedAttention) and isinstance(cross, CrossAttention)
        assert isinstance(wide, DenseFeedForward | GatedFeedForward)
        self.heads, self.cross_heads, self.cross = attn.heads, cross.heads, cross
        self.qkv, self.out = joined(attn.q_proj, attn.k_proj, attn.v_proj), joined(attn.o_proj)
        self.q_norm, self.k_norm, self.has_qk_norm = attn.q_norm, attn.k_norm, attn.heads.qk_norm
        self.cross_q, self.cross_out = joined(cross.q_proj), joined(cross.o_proj)
        self.gated = isinstance(wide, GatedFeedForward)
        self.up = joined(wide.gate_proj, wide.up_proj) if isinstance(wide, GatedFeedForward) else joined(wide.up_proj)
        self.down, self.activation = joined(wide.down_proj), wide.activation
        self.norms = [fast_norm(part.norm, norm) for part in (block.attn, block.cross, block.ffn)]

    def attend(self, x: Tensor, kv: Tensor, place: int, turn: Map | None) -> Tensor:
        """(rows, d_model) -> what each row gathers from its own past; `kv` is (rows, 2 kv_heads, places, d_head)."""
        n_heads, n_kv_heads, rows = self.heads.n_heads, self.heads.n_kv_heads, len(x)
        q, new = self.qkv(x).view(rows, n_heads + 2 * n_kv_heads, 1, -1).split((n_heads, 2 * n_kv_heads), 1)
        if self.has_qk_norm or turn is not None:
            k, v = new.split(n_kv_heads, 1)
            q, k = self.q_norm(q), self.k_norm(k)
            if turn is not None:
                q, k = turn(q), turn(k)
            new = torch.cat((k, v), 1)
        kv.narrow(2, place, 1).copy_(new)
        k, v = kv.narrow(2, 0, place + 1).split(n_kv_heads, 1)
        # The query heads of a group stand as several queries before their one key/value head.
        mixed = F.scaled_dot_product_attention(q.reshape(rows, n_kv_heads, n_heads // n_kv_heads, -1), k, v)
        return self.out(mixed.reshape(rows, -1))

    def look(self, x: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
        """What each row gathers from its sentence's memory, (sentences, kv_heads, source, d_head)."""
        rows, sentences, n_kv_heads = len(x), len(keys), self.cross_heads.n_kv_heads
        group, beams = self.cross_heads.n_heads // n_kv_heads, rows // sentences
        q = self.cross.q_norm(self.cross_q(x).view(sentences, beams, n_kv_heads, group, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q.reshape(sentences, n_kv_heads, beams * group, -1), keys, values, hidden)
        return self.cross_out(mixed.view(sentences, n_kv_heads, beams, group, -1).transpose(1, 2).reshape(rows, -1))

    def think(self, x: Tensor) -> Tensor:
        """The feed-forward."""
        wide = self.up(x)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            return self.down(self.activation(gate) * wide)
        return self.down(self.activation(wide))


class FastDecoder:
    """A model's decoder as the fast step wants it; made once for a model and anew when its weights change."""

    def __init__(self, model: Transformer):
        assert model.decoder is not None and model.spec.decoder is not None
        norm = model.spec.decoder.layers[0].norm
        self.layers = [FastLayer(block, norm) for block in model.decoder.layers if isinstance(block, CrossBlock)]
        self.pre_norm = norm.place == "pre"
        self.parameters = list(model.parameters())
        self.version = self.current_version()

    def current_version(self) -> list[tuple[int, int]]:
        return [(one.data_ptr(), one._version) for one in self.parameters]

    @staticmethod
    def of(model: Transformer) -> "FastDecoder":
        """The joined weights of a model, kept as long as the model's own stay the same."""
        kept = _kept.get(model)
        if kept is None or kept.parameters[0] is not model.embed.weight or kept.version != kept.current_version():
            kept = _kept[model] = FastDecoder(model)
        return kept


_kept: WeakKeyDictionary[Transformer, FastDecoder] = WeakKeyDictionary()


class FastStepper:
    """Rows are hypotheses, sentence after sentence, each sentence with equally many."""

    def __init__(self, model: Transformer, source_ids: Tensor, real: Tensor | None):
        self.model, self.fast = model, FastDecoder.of(model)
        memory = model.encode(source_ids, real)
        pairs = [layer.cross.keys_values(memory.states) for layer in self.fast.layers]
        self.memory = [(k.contiguous(), v.contiguous()) for k, v in pairs]           # (sentences, kv_heads, source, d)
        self.hidden = None                                                           # (sentences, 1, 1, source)
        if real is not None:
            self.hidden = memory.states.new_zeros(real.shape).masked_fill_(~real, -torch.inf)[:, None, None, :]
        heads = self.fast.layers[0].heads
        room = memory.states.new_zeros
        self.kv = [room(len(source_ids), 2 * heads.n_kv_heads, ROOM, heads.d_head) for _ in self.fast.layers]
        self.place = 0
        self._plan(ROOM)

    def _plan(self, places: int) -> None:
        """What each place adds to an embedding, and how it turns queries and keys, for all places ahead at once."""
        decoder, weight = self.model.decoder, self.model.embed.weight
        assert decoder is not None
        all_places = torch.arange(min(places, decoder.limit or places), device=weight.device)[None]
        self.added = decoder.positions(weight.new_zeros(1, all_places.shape[1], weight.shape[1]), all_places)[0]
        self.turns = decoder.positions.turn(all_places, weight.dtype) if isinstance(decoder.positions, RotaryPositions) else None

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) last tokens -> (rows, vocab) logits of the next."""
        if self.place == self.kv[0].shape[2]:
            self.kv = [torch.cat([one, torch.zeros_like(one)], dim=2) for one in self.kv]
            self._plan(self.kv[0].shape[2])
        model, place, turn = self.model, self.place, self._turn()
        assert model.decoder is not None
        x = torch.add(self.added[place], F.embedding(ids, model.embed.weight), alpha=model.scale)  # (rows, d_model)
        x = model.decoder.embed_norm(x)
        through = self._through_pre if self.fast.pre_norm else self._through_post
        for layer, kv, memory in zip(self.fast.layers, self.kv, self.memory, strict=True):
            x = through(x, layer, kv, memory, turn)
        self.place += 1
        return model.logits(model.decoder.norm(x))                                   # (rows, vocab)

    def _turn(self) -> Map | None:
        if self.turns is None:
            return None
        assert isinstance(self.turns, HalvesTurn)
        return HalvesTurn(*(one[0, 0, self.place] for one in (self.turns.cos, self.turns.sin)))

    def _through_pre(self, x: Tensor, layer: FastLayer, kv: Tensor, memory: tuple[Tensor, Tensor], turn: Map | None) -> Tensor:
        first, second, third = layer.norms
        x = layer.attend(first(x), kv, self.place, turn).add_(x)
        x = layer.look(second(x), *memory, self.hidden).add_(x)
        return layer.think(third(x)).add_(x)

    def _through_post(self, x: Tensor, layer: FastLayer, kv: Tensor, memory: tuple[Tensor, Tensor], turn: Map | None) -> Tensor:
        first, second, third = layer.norms
        x = first(layer.attend(x, kv, self.place, turn).add_(x))
        x = second(layer.look(x, *memory, self.hidden).add_(x))
        return third(layer.think(x).add_(x))

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """New row i goes on from old row rows[i]; `sentences` stay, in this order (None: all of them)."""
        for index, old in enumerate(self.kv):
            self.kv[index] = old.new_empty(len(rows), *old.shape[1:])
            self.kv[index].narrow(2, 0, self.place).copy_(old.narrow(2, 0, self.place).index_select(0, rows))
        if sentences is not None:
            self.memory = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.memory]
            self.hidden = None if self.hidden is None else self.hidden.index_select(0, sentences)


def can_be_fast(model: Transformer) -> bool:
    """Whether every decoder block is of the common kind: full attention, cross-attention, a plain feed-forward."""
    if model.decoder is None or model.encoder is None or model.spec.decoder is None:
        return False
    layers, positions = model.spec.decoder.layers, model.spec.positions
    return (
        len(layers) == 1
        and isinstance(layers[0].mixer, s.Heads) and layers[0].mixer.window is None
        and layers[0].norm.kind != "batch" and not isinstance(layers[0].feed_forward, s.Experts)
        and not (isinstance(positions, s.Rotary) and positions.pairs != "halves")
        and all(_is_fused(block) for block in model.decoder.layers)
    )  # fmt: skip


def _is_fused(block: nn.Module) -> bool:
    """Not while a recording has swapped the attention's core."""
    assert isinstance(block, CrossBlock)
    return isinstance(block.attn.branch.core, FusedCore) and isinstance(block.cross.branch.core, FusedCore)


def joined(*maps: nn.Linear) -> Map:
    """Several maps of one input as one product."""
    weight = torch.cat([one.weight.detach() for one in maps])
    biases = [one.bias.detach() for one in maps if one.bias is not None]
    return partial(F.linear, weight=weight, bias=torch.cat(biases) if biases else None)


def fast_norm(module: nn.Module, norm: s.Norm) -> Map:
    """The norm as one call, without the module around it."""
    weights = dict(module.named_parameters())
    width = list(weights["weight"].shape)
    if norm.kind == "rms":
        return partial(F.rms_norm, normalized_shape=width, weight=weights["weight"].detach(), eps=norm.eps)
    bias = weights["bias"].detach()
    return partial(F.layer_norm, normalized_shape=width, weight=weights["weight"].detach(), bias=bias, eps=norm.eps)
