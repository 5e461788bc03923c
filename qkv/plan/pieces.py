"""A model taken apart on paper: every weight it will have, and every product of two streams.

In: a spec, nothing built and no torch. Out: a list of pieces; each knows its part of the model, how many numbers it
holds and what it costs to use. Told in docs/cost.md, "Pieces".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from qkv.model import spec as s

Side = Literal[
    "source", "target", "sentence"
]  # the encoder's tokens, the decoder's, or one vector per sentence
PARTS = (
    "embedding",
    "attention",
    "scores",
    "cross",
    "cross_scores",
    "feed_forward",
    "norms",
    "head",
)


@dataclass(frozen=True)
class Load:
    """What one pass is given: so many rows, and the lengths of both sides."""

    batch: int
    source: int  # tokens the encoder reads in each row; 0 without an encoder
    target: int  # tokens the decoder reads in each row; 0 without a decoder

    def length(self, side: Side) -> int:
        return {"source": self.source, "target": self.target, "sentence": 1}[side]

    @property
    def tokens(self) -> int:
        """All tokens that are read, both sides together."""
        return self.batch * (self.source + self.target)


@dataclass(frozen=True)
class Weight:
    """`copies` arrays of one shape, of which each token meets `active`; `reads` None: looked up, or used elementwise."""

    part: str
    shape: tuple[int, ...]
    reads: Side | None = None
    copies: int = 1  # 0: the numbers belong to another piece (a tied head)
    active: int = 1

    @property
    def numbers(self) -> int:
        return self.copies * prod(self.shape)

    @property
    def active_numbers(self) -> int:
        return min(self.copies, self.active) * prod(self.shape)

    def flops(self, load: Load) -> int:
        """2 x multiply-adds: each token is multiplied once by each number it meets."""
        return (
            0
            if self.reads is None
            else 2 * load.batch * load.length(self.reads) * self.active * prod(self.shape)
        )


@dataclass(frozen=True)
class Meeting:
    """Queries meet keys: q k^T and the mixing of v; `width` is all heads' key widths and value widths together."""

    part: str
    width: int
    queries: Side
    keys: Side
    numbers: int = 0
    active_numbers: int = 0

    def flops(self, load: Load) -> int:
        """2 b q k width: every pair is counted, also those a mask hides, for the kernel's product has them all."""
        return 2 * load.batch * load.length(self.queries) * load.length(self.keys) * self.width


Piece = Weight | Meeting


def pieces_of(spec: s.Spec) -> list[Piece]:
    """All pieces of a model, from the embedding to the head."""
    return [
        *_tables(spec),
        *_stack(spec, spec.encoder, "source"),
        *_stack(spec, spec.decoder, "target"),
        *_head(spec),
    ]


def _tables(spec: s.Spec) -> Iterator[Piece]:
    for rows in (spec.vocab_size, spec.source_vocab_size, spec.token_types):
        if rows:
            yield Weight("embedding", (rows, spec.d_model))


def _stack(spec: s.Spec, stack: s.Stack | None, side: Side) -> Iterator[Piece]:
    if stack is None:
        return
    if isinstance(spec.positions, s.Learned):
        yield Weight("embedding", (spec.max_len + spec.positions.first, spec.d_model))
    if stack.embed_norm:
        yield from _norm(stack.layers[0].norm, spec.d_model)
    for layer in stack.each_layer():
        yield from layer_pieces(layer, spec, stack.sees, side)
    if stack.final_norm:
        yield from _norm(stack.layers[-1].norm, spec.d_model)


def layer_pieces(layer: s.Layer, spec: s.Spec, sees: str, side: Side) -> Iterator[Piece]:
    """The pieces of one block: mixer, cross-attention, feed-forward, and a norm for each."""
    yield from _norm(layer.norm, spec.d_model)
    yield from _mixer(layer.mixer, spec, sees, side)
    if layer.cross is not None:
        yield from _norm(layer.norm, spec.d_model)
        yield from _heads("cross", layer.cross, spec.d_model, side, "source")
    yield from _norm(layer.norm, spec.d_model)
    yield from _feed_forward(layer.feed_forward, spec.d_model, side)


def _norm(norm: s.Norm, width: int) -> Iterator[Piece]:
    yield Weight("norms", (width,))  # the gain; RMSNorm has nothing else
    if norm.kind != "rms":
        yield Weight("norms", (width,))


def _linear(part: str, n_in: int, n_out: int, reads: Side, bias: bool = False) -> Iterator[Piece]:
    yield Weight(part, (n_out, n_in), reads)
    if bias:
        yield Weight(part, (n_out,))


# ── Mixers ───────────────────────────────────────────────────────────────────────────────────────────────────────
def _mixer(mixer: s.Mixer, spec: s.Spec, sees: str, side: Side) -> Iterator[Piece]:
    d = spec.d_model
    match mixer:
        case s.Heads():
            yield from _heads("attention", mixer, d, side, side)
        case s.Latent():
            yield from _latent(mixer, d, side)
        case s.Recurrent():
            yield from _recurrent(mixer, d, sees, side)
        case s.Convolution():
            yield Weight("attention", (d, d, mixer.width), side)
            yield Weight("attention", (d,))
        case s.TokenMlp():  # its two tables multiply along the places: a meeting of tokens, not a map of each
            yield from 2 * [Weight("attention", (spec.max_len, spec.max_len))]
            yield Meeting("scores", 2 * d, side, side)
        case s.Pooling():
            return


def _heads(part: str, heads: s.Heads, d: int, queries: Side, keys: Side) -> Iterator[Piece]:
    own, shared = heads.n_heads * heads.d_head, heads.n_kv_heads * heads.d_head
    yield from _linear(part, d, own, queries, heads.bias)
    yield from _linear(part, d, shared, keys, heads.bias)
    yield from _linear(part, d, shared, keys, heads.bias)
    yield from _linear(part, own, d, queries, heads.out_bias)
    if heads.qk_norm:
        yield from 2 * [Weight("norms", (heads.d_head,))]
    yield Meeting("scores" if part == "attention" else "cross_scores", 2 * own, queries, keys)


def _latent(latent: s.Latent, d: int, side: Side) -> Iterator[Piece]:
    """The unfolded path, as in training: every head's keys and values are written out."""
    h, d_key = latent.n_heads, latent.d_nope + latent.d_rope
    if latent.q_rank is None:
        yield from _linear("attention", d, h * d_key, side)
    else:
        yield from _linear("attention", d, latent.q_rank, side)
        yield Weight("norms", (latent.q_rank,))
        yield from _linear("attention", latent.q_rank, h * d_key, side)
    yield from _linear("attention", d, latent.kv_rank + latent.d_rope, side)
    yield Weight("norms", (latent.kv_rank,))
    yield from _linear("attention", latent.kv_rank, h * (latent.d_nope + latent.d_value), side)
    yield from _linear("attention", h * latent.d_value, d, side)
    yield Meeting("scores", h * (d_key + latent.d_value), side, side)


def _recurrent(recurrent: s.Recurrent, d: int, sees: str, side: Side) -> Iterator[Piece]:
    gates = 4 if recurrent.cell == "lstm" else 3
    directions, width = (1, d) if sees == "past" else (2, d // 2)
    for _ in range(directions):
        yield Weight("attention", (gates * width, d), side)
        yield Weight("attention", (gates * width, width), side)
        yield from 2 * [Weight("attention", (gates * width,))]


# ── Feed-forward and head ────────────────────────────────────────────────────────────────────────────────────────
def _feed_forward(part: s.FeedForward, d: int, side: Side) -> Iterator[Piece]:
    match part:
        case s.Dense() | s.Gated():
            for _ in range(2 if isinstance(part, s.Gated) else 1):
                yield from _linear("feed_forward", d, part.d_ff, side, part.bias)
            yield from _linear("feed_forward", part.d_ff, d, side, part.bias)
        case s.Experts():
            yield from _experts(part, d, side)


def _experts(experts: s.Experts, d: int, side: Side) -> Iterator[Piece]:
    yield from _linear("feed_forward", d, experts.n_experts, side)  # the router
    if experts.balance_bias:
        yield Weight("feed_forward", (experts.n_experts,))
    maps = 3 if isinstance(experts.each, s.Gated) else 2
    yield from maps * [
        Weight("feed_forward", (experts.each.d_ff, d), side, experts.n_experts, experts.n_active)
    ]
    if experts.shared is not None:
        yield from _feed_forward(experts.shared, d, side)


def _head(spec: s.Spec) -> Iterator[Piece]:
    side: Side = "target" if spec.decoder else "source"
    d, stack = spec.d_model, spec.decoder or spec.encoder
    assert stack is not None
    match spec.head:
        case s.LmHead():
            yield Weight("head", (spec.vocab_size, d), side, copies=0 if spec.head.tied else 1)
            if spec.head.bias:
                yield Weight("head", (spec.vocab_size,))
        case s.MaskedHead():
            yield from _linear("head", d, d, side, bias=True)
            yield from _norm(stack.layers[-1].norm, d)
            yield Weight("head", (spec.vocab_size, d), side, copies=0)
            yield Weight("head", (spec.vocab_size,))
        case s.Pooler():
            yield from _linear("head", d, d, "sentence", bias=True)
        case None:
            return
