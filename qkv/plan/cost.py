"""What a model costs, from its spec alone: parameters, FLOPs, bytes.

In: a spec and a Load (rows and lengths); no model is built and torch is not imported. Out: exact counts by part, and
for activations an estimate whose formula is stated. Told in docs/cost.md; `qkv plan` prints it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model import spec as s
from qkv.plan.pieces import PARTS, Load, Piece, Weight, pieces_of

BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
HIDDEN = ("attention", "cross", "feed_forward")  # the parts whose matrices Muon takes
TRAINING = 3  # forward once; backward twice: towards the inputs and towards the weights


def load_of(
    spec: s.Spec, batch: int = 1, length: int = 512, source_length: int | None = None
) -> Load:
    """`length` is the decoder's, or the only stack's; `source_length` the encoder's beside it, else the same."""
    source = (source_length or length) if spec.decoder else length
    load = Load(batch, source if spec.encoder else 0, length if spec.decoder else 0)
    for stack, tokens in ((spec.encoder, load.source), (spec.decoder, load.target)):
        if stack is not None and _has_table_of_places(spec, stack) and tokens > spec.max_len:
            wrong = _("{tokens} tokens are too long", tokens=tokens)
            right = _("this model reads at most {max_len}", max_len=spec.max_len)
            raise QkvError("length", wrong, right)
    return load


def _has_table_of_places(spec: s.Spec, stack: s.Stack) -> bool:
    return isinstance(spec.positions, s.Learned) or any(
        isinstance(one.mixer, s.TokenMlp) for one in stack.layers
    )


# ── Parameters and FLOPs ─────────────────────────────────────────────────────────────────────────────────────────
def parameters(spec: s.Spec) -> dict[str, int]:
    """How many numbers training can change, by part; sum the values for the whole."""
    return _by_part(pieces_of(spec), lambda piece: piece.numbers)


def active_parameters(spec: s.Spec) -> dict[str, int]:
    """The same, of experts only those that one token meets."""
    return _by_part(pieces_of(spec), lambda piece: piece.active_numbers)


def flops(spec: s.Spec, load: Load) -> dict[str, int]:
    """2 x multiply-adds of all matrix products of one forward pass, by part; logits at every position.

    Not counted, for they are few beside the products: softmax, norms, activations, rotations, sums, look-ups.
    """
    return _by_part(pieces_of(spec), lambda piece: piece.flops(load))


def training_flops(spec: s.Spec, load: Load) -> int:
    """Forward and backward: three times forward."""
    return TRAINING * sum(flops(spec, load).values())


def _by_part(pieces: list[Piece], count: Callable[[Piece], int]) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for piece in pieces:
        counts[piece.part] += count(piece)
    return {part: number for part, number in counts.items() if number}


def hours(spec: s.Spec, load: Load, tokens: int, gflops: float) -> float:
    """Training on so many tokens (source and target together) at a steady rate, in passes like `load`."""
    return training_flops(spec, load) * (tokens / load.tokens) / (gflops * 1e9) / 3_600


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class Memory:
    """Bytes while training, and what generation needs beside the weights."""

    weights: int
    gradients: int
    adam: int  # two float32 moments of every parameter
    muon: int  # one of each matrix inside the layers, Adam's two of all the rest
    activations: int  # estimated: what the forward pass keeps for the backward pass
    cache: int  # keys and values of all layers for the whole batch, cross-attention's included
    cache_per_token: int  # of one row, own tokens only


def memory(spec: s.Spec, load: Load, dtype: str = "float32") -> Memory:
    """What one training step and one generation hold. int8 is for the weights alone: the rest stays float32."""
    wide = 4 if dtype == "int8" else BYTES[dtype]
    pieces = pieces_of(spec)
    total = sum(piece.numbers for piece in pieces)
    matrices = sum(
        p.numbers
        for p in pieces
        if p.part in HIDDEN and isinstance(p, Weight) and len(p.shape) == 2 and p.copies == 1
    )
    return Memory(
        weights=total * BYTES[dtype],
        gradients=total * wide,
        adam=2 * 4 * total,
        muon=4 * matrices + 2 * 4 * (total - matrices),
        activations=activation_bytes(spec, load, wide),
        cache=wide
        * load.batch
        * (load.target * cached_numbers(spec) + load.source * cached_cross_numbers(spec)),
        cache_per_token=wide * cached_numbers(spec),
    )


def cached_numbers(spec: s.Spec) -> int:
    """What generation keeps for each token of a row, all layers: 2 n_kv_heads d_head, or latent: kv_rank + d_rope."""
    return sum(_cached(layer.mixer, spec.d_model) for layer in _layers(spec.decoder))


def cached_cross_numbers(spec: s.Spec) -> int:
    """What cross-attention keeps for each source token, all layers: made once, at the first step."""
    return sum(
        2 * one.cross.n_kv_heads * one.cross.d_head
        for one in _layers(spec.decoder)
        if one.cross is not None
    )


def window_numbers(spec: s.Spec, length: int) -> int:
    """What windows can still see of a row of `length` tokens: a cache that forgot the rest would hold this much."""
    return sum(
        _cached(one.mixer, spec.d_model) * min(length, getattr(one.mixer, "window", None) or length)
        for one in _layers(spec.decoder)
    )


def _cached(mixer: s.Mixer, d_model: int) -> int:
    match mixer:
        case s.Heads():
            return 2 * mixer.n_kv_heads * mixer.d_head
        case s.Latent():
            return mixer.kv_rank + mixer.d_rope
        case _:
            return d_model  # the other mixers keep the stream itself


def _layers(stack: s.Stack | None) -> list[s.Layer]:
    return [] if stack is None else stack.each_layer()


# ── Activations, estimated ───────────────────────────────────────────────────────────────────────────────────────
KEPT: Mapping[str, int] = {
    "relu": 1,
    "relu2": 2,
    "gelu": 2,
    "gelu_tanh": 2,
    "silu": 2,
}  # arrays of width d_ff


def activation_bytes(spec: s.Spec, load: Load, bytes_each: int) -> int:
    """b x (sum over layers of s x (numbers kept for a token)); and with dropout a byte for each number it may silence.

    A sublayer keeps the input and the output of its norm, 2 d (RMSNorm: 3 d); attention its q, k, v and mixture; a
    feed-forward d_ff once (relu), twice (gelu, silu) or four times (gated silu). The score matrix is never held: the kernel is fused. The head
    keeps its input and that input's gradient; logits are worked out in chunks of 4 MB.
    """
    numbers = dropped = 0
    for stack, length in ((spec.encoder, load.source), (spec.decoder, load.target)):
        for layer in _layers(stack):
            numbers += length * kept_by_layer(layer, spec.d_model, length)
            if layer.cross is not None:
                numbers += load.source * 2 * layer.cross.n_kv_heads * layer.cross.d_head
            dropped += length * spec.d_model * (2 if layer.cross is None else 3)
        dropped += length * spec.d_model
    numbers += 3 * spec.d_model * (load.target or load.source)
    return load.batch * (bytes_each * numbers + (dropped if spec.dropout else 0))


def kept_by_layer(layer: s.Layer, d: int, length: int) -> int:
    """Numbers that a layer keeps for each of its tokens until the backward pass."""
    norm = (3 if layer.norm.kind == "rms" else 2) * d
    kept = norm + _kept_by_mixer(layer.mixer, d, length)
    if layer.cross is not None:
        kept += norm + 2 * layer.cross.n_heads * layer.cross.d_head
    return kept + norm + _kept_by_feed_forward(layer.feed_forward, d)


def _kept_by_mixer(mixer: s.Mixer, d: int, length: int) -> int:
    match mixer:
        case s.Heads():
            return 2 * (mixer.n_heads + mixer.n_kv_heads) * mixer.d_head
        case s.Latent():
            widths = mixer.n_heads * (2 * (mixer.d_nope + mixer.d_rope) + 2 * mixer.d_value)
            # Values narrower than keys find no fused kernel on a CPU: the weights of every pair are held.
            pairs = 0 if mixer.d_value == mixer.d_nope + mixer.d_rope else mixer.n_heads * length
            return widths + 2 * (mixer.kv_rank + mixer.d_rope) + 2 * (mixer.q_rank or 0) + pairs
        case s.Recurrent():
            return (6 if mixer.cell == "lstm" else 5) * d
        case s.TokenMlp():
            return 2 * d
        case s.Convolution() | s.Pooling():
            return d


def _kept_by_feed_forward(part: s.FeedForward, d: int) -> int:
    match part:
        case s.Dense():
            return KEPT[part.activation] * part.d_ff
        case s.Gated():
            return (2 + KEPT[part.activation]) * part.d_ff
        case s.Experts():
            each = 4 * d + _kept_by_feed_forward(
                part.each, d
            )  # question and answer, each at home and in its seat
            shared = _kept_by_feed_forward(part.shared, d) if part.shared else 0
            return part.n_experts + part.n_active * each + shared
