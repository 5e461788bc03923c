"""The fast step: the same decoder, seen as few large operations for one new token per row.

In: a model, then one id per row and step. Out: logits, equal to the model's own (proven in tests/generate/test_fast.py).
Joined weights (q, k, v; gate, up), a cache written in place, beams as queries of one sentence's memory, and TorchScript
around it all, so that a step costs arithmetic and not Python. Told in docs/performance.md, "Decoding".
"""

from typing import NamedTuple, Optional
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.attention import CrossAttention, FusedCore, GroupedAttention
from qkv.model.block import CrossBlock
from qkv.model.feed_forward import DenseFeedForward, GatedFeedForward
from qkv.model.possible import turned_width
from qkv.model.transformer import Transformer
from qkv.model.turn import frequencies

ROOM = 64  # places of the cache at the start; it doubles when full

# TorchScript reads these types itself: it needs Optional, and knows no `X | None`.
Bias = Optional[Tensor]  # noqa: UP045


class Affine(NamedTuple):
    """A linear map, or a norm: a weight and perhaps a bias."""

    weight: Tensor
    bias: Bias


class StepShape(NamedTuple):
    """What is the same in every layer."""

    n_heads: int
    n_kv_heads: int
    cross_heads: int
    cross_kv_heads: int
    pre_norm: bool
    rms: bool
    eps: float
    activation: str
    gated: bool


class Layer(NamedTuple):
    """The weights of one block."""

    qkv: Affine
    q_norm: Bias
    k_norm: Bias
    out: Affine
    attn_norm: Affine
    cross_q: Affine
    cross_q_norm: Bias
    cross_out: Affine
    cross_norm: Affine
    up: Affine
    down: Affine
    ffn_norm: Affine


def normed(x: Tensor, norm: Affine, shape: StepShape) -> Tensor:
    if shape.rms:
        return torch.rms_norm(x, [x.shape[-1]], norm.weight, shape.eps)
    return F.layer_norm(x, [x.shape[-1]], norm.weight, norm.bias, shape.eps)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(rows, heads, d_head): the first half of the turned dimensions is paired with the second."""
    half = cos.shape[0]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def self_attention(x: Tensor, layer: Layer, kv: Tensor, place: int, turn: tuple[Tensor, Tensor], shape: StepShape) -> Tensor:
    rows, heads, kv_heads = x.shape[0], shape.n_heads, shape.n_kv_heads
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias).view(rows, heads + 2 * kv_heads, -1)  # (rows, heads, d_head)
    q, k, v = qkv[:, :heads], qkv[:, heads : heads + kv_heads], qkv[:, heads + kv_heads :]
    q_norm, k_norm = layer.q_norm, layer.k_norm
    if q_norm is not None and k_norm is not None:
        q, k = torch.rms_norm(q, [q.shape[-1]], q_norm, shape.eps), torch.rms_norm(k, [k.shape[-1]], k_norm, shape.eps)
    if turn[0].shape[0] > 0:
        q, k = turned(q, turn[0], turn[1]), turned(k, turn[0], turn[1])
    kv[:, 0, :, place] = k
    kv[:, 1, :, place] = v
    # The query heads of a group stand as several queries before their one key/value head.
    q = q.reshape(rows, kv_heads, heads // kv_heads, q.shape[-1])
    mixed = F.scaled_dot_product_attention(q, kv[:, 0, :, : place + 1], kv[:, 1, :, : place + 1])
    return F.linear(mixed.reshape(rows, -1), layer.out.weight, layer.out.bias)


def cross_attention(x: Tensor, layer: Layer, memory: tuple[Tensor, Tensor], hidden: Bias, shape: StepShape) -> Tensor:
    keys, values = memory                                                            # (sentences, kv_heads, source, d)
    sentences, heads, kv_heads = keys.shape[0], shape.cross_heads, shape.cross_kv_heads
    q = F.linear(x, layer.cross_q.weight, layer.cross_q.bias).view(x.shape[0], heads, -1)
    q_norm = layer.cross_q_norm
    if q_norm is not None:
        q = torch.rms_norm(q, [q.shape[-1]], q_norm, shape.eps)
    beams, group, d_head = x.shape[0] // sentences, heads // kv_heads, q.shape[-1]
    q = q.view(sentences, beams, kv_heads, group, d_head).transpose(1, 2).reshape(sentences, kv_heads, beams * group, d_head)
    mixed = F.scaled_dot_product_attention(q, keys, values, hidden)
    mixed = mixed.view(sentences, kv_heads, beams, group, d_head).transpose(1, 2).reshape(x.shape[0], -1)
    return F.linear(mixed, layer.cross_out.weight, layer.cross_out.bias)


def feed_forward(x: Tensor, layer: Layer, shape: StepShape) -> Tensor:
    wide = F.linear(x, layer.up.weight, layer.up.bias)
    rest = wide
    if shape.gated:
        wide, rest = wide.chunk(2, dim=-1)
    if shape.activation == "relu":
        wide = F.relu(wide)
    elif shape.activation == "relu2":
        wide = F.relu(wide).square()
    elif shape.activation == "silu":
        wide = F.silu(wide)
    elif shape.activation == "gelu":
        wide = F.gelu(wide)
    else:
        wide = F.gelu(wide, approximate="tanh")
    return F.linear(wide * rest if shape.gated else wide, layer.down.weight, layer.down.bias)


def step(
    x: Tensor, layers: list[Layer], kv: list[Tensor], memory: list[tuple[Tensor, Tensor]], hidden: Bias, place: int,
    turn: tuple[Tensor, Tensor], shape: StepShape,
) -> Tensor:
    """(rows, d_model) through all blocks, at one place."""
    for index, layer in enumerate(layers):
        if shape.pre_norm:
            x = x + self_attention(normed(x, layer.attn_norm, shape), layer, kv[index], place, turn, shape)
            if len(memory) > 0:
                x = x + cross_attention(normed(x, layer.cross_norm, shape), layer, memory[index], hidden, shape)
            x = x + feed_forward(normed(x, layer.ffn_norm, shape), layer, shape)
        else:
            x = normed(x + self_attention(x, layer, kv[index], place, turn, shape), layer.attn_norm, shape)
            if len(memory) > 0:
                x = normed(x + cross_attention(x, layer, memory[index], hidden, shape), layer.cross_norm, shape)
            x = normed(x + feed_forward(x, layer, shape), layer.ffn_norm, shape)
    return x


scripted_step = torch.jit.script(step)


class Joined:
    """A model's decoder as the fast step wants it; made once for a model and made anew when its weights change."""

    def __init__(self, model: Transformer):
        assert model.decoder is not None
        self.layers = [joined_layer(block) for block in model.decoder.layers]
        layer = layer_spec(model.spec)
        heads, cross, wide, norm = layer.mixer, layer.cross, layer.feed_forward, layer.norm
        assert isinstance(heads, s.Heads) and cross is not None and not isinstance(wide, s.Experts)
        self.d_head = heads.d_head
        self.shape = StepShape(
            heads.n_heads, heads.n_kv_heads, cross.n_heads, cross.n_kv_heads, norm.place == "pre", norm.kind == "rms",
            norm.eps, wide.activation, isinstance(wide, s.Gated),
        )  # fmt: skip

    @staticmethod
    def of(model: Transformer) -> "Joined":
        """The joined weights of a model, kept as long as the model's own stay the same."""
        version = tuple((one.data_ptr(), one._version) for one in model.parameters())
        kept = _joined.get(model)
        if kept is None or kept[0] != version:
            kept = (version, Joined(model))
            _joined[model] = kept
        return kept[1]


_joined: WeakKeyDictionary[Transformer, tuple[object, Joined]] = WeakKeyDictionary()


class FastStepper:
    """Rows are hypotheses, sentence after sentence, each sentence with equally many."""

    def __init__(self, model: Transformer, source_ids: Tensor, real: Tensor | None):
        self.model, self.joined = model, Joined.of(model)
        memory = model.encode(source_ids, real)
        assert model.decoder is not None
        attentions = [cross_of(block) for block in model.decoder.layers]
        pairs = [attention.keys_values(memory.states) for attention in attentions]
        self.memory = [(k.contiguous(), v.contiguous()) for k, v in pairs]           # (sentences, kv_heads, source, d)
        self.hidden = None if real is None else memory.states.new_zeros(real.shape).masked_fill_(~real, -torch.inf)
        self.hidden = None if self.hidden is None else self.hidden[:, None, None, :]
        self.place, self.kv = 0, [self._room(len(source_ids), ROOM) for _ in self.joined.layers]
        self.speeds = turn_speeds(model)

    def _room(self, rows: int, places: int) -> Tensor:
        weight = self.model.embed.weight
        return weight.new_zeros(rows, 2, self.joined.shape.n_kv_heads, places, self.joined.d_head)

    def step(self, ids: Tensor) -> Tensor:
        if self.place == self.kv[0].shape[3]:
            self.kv = [torch.cat([one, torch.zeros_like(one)], dim=3) for one in self.kv]
        model = self.model
        assert model.decoder is not None
        x = F.embedding(ids, model.embed.weight) * model.scale                       # (rows, d_model)
        places = torch.full((1, 1), self.place, device=ids.device)
        x = model.decoder.embed_norm(model.decoder.positions(x[:, None], places))[:, 0]
        angles = self.place * self.speeds
        turn = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        x = scripted_step(x, self.joined.layers, self.kv, self.memory, self.hidden, self.place, turn, self.joined.shape)
        self.place += 1
        return model.logits(model.decoder.norm(x))                                     # (rows, vocab)

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        used = self.place
        fresh = [self._room(len(rows), one.shape[3]) for one in self.kv]
        for old, new in zip(self.kv, fresh, strict=True):
            new[..., :used, :] = old[..., :used, :].index_select(0, rows)
        self.kv = fresh
        if sentences is not None:
            self.memory = [(k.index_select(0, sentences), v.index_select(0, sentences)) for k, v in self.memory]
            self.hidden = None if self.hidden is None else self.hidden.index_select(0, sentences)


def can_be_fast(model: Transformer) -> bool:
    """Whether every decoder block is of the common kind: full attention, cross-attention, a plain feed-forward."""
    if model.decoder is None or model.encoder is None or model.spec.decoder is None:
        return False
    layers = model.spec.decoder.layers
    rotary = model.spec.positions
    return (
        len(layers) == 1
        and isinstance(layers[0].mixer, s.Heads) and layers[0].mixer.window is None
        and layers[0].norm.kind != "batch" and not isinstance(layers[0].feed_forward, s.Experts)
        and not (isinstance(rotary, s.Rotary) and (rotary.scaling is not None or rotary.pairs != "halves"))
        and all(isinstance(module.core, FusedCore) for module in model.modules() if isinstance(module, GroupedAttention))
    )  # fmt: skip


def layer_spec(spec: s.Spec) -> s.Layer:
    assert spec.decoder is not None
    return spec.decoder.layers[0]


def turn_speeds(model: Transformer) -> Tensor:
    """How fast each pair of dimensions turns; none where positions are not rotary."""
    rotary, heads = model.spec.positions, layer_spec(model.spec).mixer
    width = turned_width(heads, rotary)
    speeds = frequencies(rotary, width) if isinstance(rotary, s.Rotary) else []
    return torch.tensor(speeds, dtype=torch.float64)


def cross_of(block: nn.Module) -> CrossAttention:
    assert isinstance(block, CrossBlock) and isinstance(block.cross.branch, CrossAttention)
    return block.cross.branch


def joined_layer(block: nn.Module) -> Layer:
    """The weights of a block, those that read the same input side by side."""
    assert isinstance(block, CrossBlock)
    attn, cross, wide = block.attn.branch, cross_of(block), block.ffn.branch
    assert isinstance(attn, GroupedAttention) and isinstance(wide, DenseFeedForward | GatedFeedForward)
    ups = (wide.gate_proj, wide.up_proj) if isinstance(wide, GatedFeedForward) else (wide.up_proj,)
    return Layer(
        qkv=joined(attn.q_proj, attn.k_proj, attn.v_proj), q_norm=gain(attn.q_norm), k_norm=gain(attn.k_norm),
        out=joined(attn.o_proj), attn_norm=joined(block.attn.norm),
        cross_q=joined(cross.q_proj), cross_q_norm=gain(cross.q_norm), cross_out=joined(cross.o_proj),
        cross_norm=joined(block.cross.norm), up=joined(*ups), down=joined(wide.down_proj), ffn_norm=joined(block.ffn.norm),
    )  # fmt: skip


def joined(*maps: nn.Module) -> Affine:
    """Several maps of one input as one."""
    tensors = [dict(one.named_parameters()) for one in maps]
    biases = [one["bias"].detach() for one in tensors if "bias" in one]
    return Affine(torch.cat([one["weight"].detach() for one in tensors]), torch.cat(biases) if biases else None)


def gain(norm: nn.Module) -> Tensor | None:
    return norm.weight.detach() if isinstance(norm, nn.RMSNorm) else None
