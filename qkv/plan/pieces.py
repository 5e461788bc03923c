"""The weights and attention products of a spec, each with its parameters and FLOPs.

Nothing is built and torch is not imported. See docs/explanation/cost.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model import spec as s
from qkv.model.band_size import n_pairs
from qkv.model.check_spec import custom_parts

# The encoder's tokens, the decoder's, or one vector per sentence.
Side = Literal["source", "target", "sentence"]
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
class Workload:
    """The size of a pass: sequences of a batch, and tokens of a sequence on both sides."""

    batch: int
    source: int  # tokens of an encoder input; 0 without an encoder
    target: int  # tokens of a decoder input; 0 without a decoder

    def length(self, side: Side | None) -> int:
        """Tokens of a sequence on a side; 0 for None."""
        return {"source": self.source, "target": self.target, "sentence": 1, None: 0}[side]

    @property
    def tokens(self) -> int:
        """Tokens of the batch, source and target together."""
        return self.batch * (self.source + self.target)


@dataclass(frozen=True)
class Weight:
    """`copies` arrays of one shape, of which each token uses `active`.

    `reads` has the tokens that the weight is multiplied with; None for a lookup or a vector.
    """

    part: str
    shape: tuple[int, ...]
    reads: Side | None = None
    copies: int = 1  # 0: counted in another piece (a tied head)
    active: int = 1

    @property
    def n_parameters(self) -> int:
        return self.copies * prod(self.shape)

    @property
    def n_active_parameters(self) -> int:
        return min(self.copies, self.active) * prod(self.shape)

    def flops(self, workload: Workload) -> int:
        """2 x multiply-adds: one multiply-add per token and active parameter."""
        return 2 * workload.batch * workload.length(self.reads) * self.active * prod(self.shape)


@dataclass(frozen=True)
class AttentionProduct:
    """The products q k^T and weights x v; `width` sums the key and value widths of all heads."""

    part: str
    width: int
    queries: Side
    keys: Side
    n_parameters: int = 0
    n_active_parameters: int = 0
    window: int | None = None
    causal: bool = False

    def flops(self, workload: Workload) -> int:
        """2 b q k width; masked pairs are counted, because the product computes them.

        A sliding window computes the pairs of its blocks only.
        """
        pairs = workload.length(self.queries) * workload.length(self.keys)
        if self.window is not None:
            pairs = n_pairs(workload.length(self.queries), self.window, self.causal)
        return 2 * workload.batch * pairs * self.width


Piece = Weight | AttentionProduct
Pieces = Iterator[Piece]


def pieces_of(spec: s.Spec) -> list[Piece]:
    """All pieces of a model, from the embedding to the head."""
    if custom := custom_parts(spec):
        wrong = _("the cost of a custom part is unknown ({parts})", parts=listed(custom))
        raise QkvError("plan", wrong, _("plan the model without it"))
    stacks = [piece for stack, side in stacks_of(spec) for piece in _stack(spec, stack, side)]
    return [*_embeddings(spec), *stacks, *_head(spec)]


def stacks_of(spec: s.Spec) -> Iterator[tuple[s.Stack, Side]]:
    """The encoder and the decoder, as far as the model has them, and the tokens they read."""
    if spec.encoder:
        yield spec.encoder, "source"
    if spec.decoder:
        yield spec.decoder, "target"


def _embeddings(spec: s.Spec) -> Pieces:
    for rows in (spec.vocab_size, spec.source_vocab_size, spec.token_types):
        if rows:
            yield Weight("embedding", (rows, spec.d_model))


def _stack(spec: s.Spec, stack: s.Stack, side: Side) -> Pieces:
    if isinstance(spec.positions, s.Learned):
        yield Weight("embedding", (spec.max_len + spec.positions.first, spec.d_model))
    if stack.embed_norm:
        yield from _norm(stack.layers[0].norm, spec.d_model)
    for layer in stack.each_layer():
        yield from layer_pieces(layer, spec, stack.causal, side)
    if stack.final_norm:
        yield from _norm(stack.layers[-1].norm, spec.d_model)


def layer_pieces(layer: s.Layer, spec: s.Spec, causal: bool, side: Side) -> Pieces:
    """The pieces of one block: mixer, cross-attention and feed-forward if any, a norm for each."""
    yield from _norm(layer.norm, spec.d_model)
    yield from _mixer(layer.mixer, spec, causal, side)
    if layer.cross is not None:
        yield from _norm(layer.norm, spec.d_model)
        yield from _attention("cross", layer.cross, spec.d_model, side, "source")
    if layer.feed_forward is not None:
        yield from _norm(layer.norm, spec.d_model)
        yield from _feed_forward(layer.feed_forward, spec.d_model, side)


def _norm(norm: s.Norm, width: int) -> Pieces:
    n_vectors = 1 if norm.kind == "rms" else 2  # RMSNorm has only a scale
    yield from n_vectors * [Weight("norms", (width,))]


def _linear(part: str, n_in: int, n_out: int, reads: Side, bias: bool = False) -> Pieces:
    yield Weight(part, (n_out, n_in), reads)
    if bias:
        yield Weight(part, (n_out,))


# ── Mixers ────────────────────────────────────────────────────────────────────────────────────
def _mixer(mixer: s.Mixer, spec: s.Spec, causal: bool, side: Side) -> Pieces:
    """The pieces of a mixer; pooling has none."""
    d = spec.d_model
    match mixer:
        case s.Attention():
            *weights, scores = _attention("attention", mixer, d, side, side)
            assert isinstance(scores, AttentionProduct)
            yield from (*weights, replace(scores, window=mixer.window, causal=causal))
        case s.LatentAttention():
            yield from _latent(mixer, d, side)
        case s.Recurrent():
            yield from _recurrent(mixer, d, causal, side)
        case s.Convolution():
            yield Weight("attention", (d, d, mixer.width), side)
            yield Weight("attention", (d,))
        case s.TokenMlp():  # multiplies along positions: FLOPs per pair of tokens
            yield from 2 * [Weight("attention", (spec.max_len, spec.max_len))]
            yield AttentionProduct("scores", 2 * d, side, side)


def _attention(part: str, heads: s.Attention, d: int, queries: Side, keys: Side) -> Pieces:
    q_width, kv_width = heads.n_heads * heads.d_head, heads.n_kv_heads * heads.d_head
    yield from _linear(part, d, q_width, queries, heads.bias)
    yield from _linear(part, d, kv_width, keys, heads.bias)
    yield from _linear(part, d, kv_width, keys, heads.bias)
    yield from _linear(part, q_width, d, queries, heads.out_bias)
    if heads.qk_norm:
        yield from 2 * [Weight("norms", (heads.d_head,))]
    scores = "scores" if part == "attention" else "cross_scores"
    yield AttentionProduct(scores, 2 * q_width, queries, keys)


def _latent(latent: s.LatentAttention, d: int, side: Side) -> Pieces:
    """As in training: the keys and values of every head are computed from the latent vector."""
    h, q_rank, kv_rank = latent.n_heads, latent.q_lora_rank, latent.kv_lora_rank
    d_key, d_value = latent.qk_nope_head_dim + latent.qk_rope_head_dim, latent.v_head_dim
    q_maps = [(d, q_rank), (q_rank, h * d_key)] if q_rank else [(d, h * d_key)]
    down, up = kv_rank + latent.qk_rope_head_dim, h * (latent.qk_nope_head_dim + d_value)
    for n_in, n_out in [*q_maps, (d, down), (kv_rank, up), (h * d_value, d)]:
        yield from _linear("attention", n_in, n_out, side)
    for rank in filter(None, (q_rank, kv_rank)):
        yield Weight("norms", (rank,))
    yield AttentionProduct("scores", h * (d_key + d_value), side, side)


def _recurrent(recurrent: s.Recurrent, d: int, causal: bool, side: Side) -> Pieces:
    gates = 4 if recurrent.cell == "lstm" else 3
    directions, width = (1, d) if causal else (2, d // 2)
    for _copy in range(directions):
        yield Weight("attention", (gates * width, d), side)
        yield Weight("attention", (gates * width, width), side)
        yield from 2 * [Weight("attention", (gates * width,))]


# ── Feed-forward and head ─────────────────────────────────────────────────────────────────────
def _feed_forward(part: s.FeedForward, d: int, side: Side) -> Pieces:
    match part:
        case s.Dense() | s.Gated():
            for _copy in range(2 if isinstance(part, s.Gated) else 1):
                yield from _linear("feed_forward", d, part.d_ff, side, part.bias)
            yield from _linear("feed_forward", part.d_ff, d, side, part.bias)
        case s.MixtureOfExperts():
            yield from _experts(part, d, side)


def _experts(experts: s.MixtureOfExperts, d: int, side: Side) -> Pieces:
    yield from _linear("feed_forward", d, experts.n_experts, side)  # the router
    if experts.score_correction_bias:
        yield Weight("feed_forward", (experts.n_experts,))
    shape, active = (experts.expert.d_ff, d), experts.n_experts_per_token
    for _copy in range(3 if isinstance(experts.expert, s.Gated) else 2):
        yield Weight("feed_forward", shape, side, experts.n_experts, active)
    if experts.shared_expert is not None:
        yield from _feed_forward(experts.shared_expert, d, side)


def _head(spec: s.Spec) -> Pieces:
    d, (stack, side) = spec.d_model, list(stacks_of(spec))[-1]
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
