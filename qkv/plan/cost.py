"""Parameters, FLOPs and memory of a model, computed from its spec.

No model is built and torch is not imported. Counts are exact; activations are an estimate.
See docs/explanation/cost.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model import spec as s
from qkv.plan.pieces import PARTS, Piece, Weight, Workload, pieces_of, stacks_of

__all__ = ["flops", "make_workload", "memory", "parameters"]

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
LAYER_PARTS = ("attention", "cross", "feed_forward")  # Muon updates their matrices
TRAINING_FACTOR = 3  # forward, and backward for the inputs and for the weights


def make_workload(
    spec: s.Spec, batch: int = 1, seq_len: int = 512, source_len: int | None = None
) -> Workload:
    """The workload of one pass.

    Args:
        spec: The model.
        batch: Sequences of the batch.
        seq_len: Tokens of a sequence in the decoder, or in the only stack.
        source_len: Tokens of a sequence in the encoder of an encoder-decoder, `seq_len` by default.
    """
    source = (source_len or seq_len) if spec.decoder else seq_len
    workload = Workload(batch, source if spec.encoder else 0, seq_len if spec.decoder else 0)
    for stack, side in stacks_of(spec):
        tokens = workload.length(side)
        has_token_mlp = any(isinstance(layer.mixer, s.TokenMlp) for layer in stack.layers)
        if tokens > spec.max_len and (isinstance(spec.positions, s.Learned) or has_token_mlp):
            wrong = _("{n_tokens} tokens are too many", n_tokens=tokens)
            right = _("the context length of this model is {max_len}", max_len=spec.max_len)
            raise QkvError("--seq-len", wrong, right)
    return workload


# ── Parameters and FLOPs ──────────────────────────────────────────────────────────────────────
def parameters(spec: s.Spec) -> dict[str, int]:
    """Trainable parameters by part of the model."""
    return _by_part(spec, lambda piece: piece.n_parameters)


def active_parameters(spec: s.Spec) -> dict[str, int]:
    """Parameters that one token uses, by part: of the experts, only the selected ones."""
    return _by_part(spec, lambda piece: piece.n_active_parameters)


def flops(spec: s.Spec, workload: Workload) -> dict[str, int]:
    """FLOPs of a forward pass, by part: 2 x multiply-adds of the matrix products.

    Logits are computed at every position. Softmax, norms, activations, rotations, sums and
    embedding lookups are not counted.
    """
    return _by_part(spec, lambda piece: piece.flops(workload))


def training_flops(spec: s.Spec, workload: Workload) -> int:
    """FLOPs of forward and backward: three times forward."""
    return TRAINING_FACTOR * sum(flops(spec, workload).values())


def _by_part(spec: s.Spec, count: Callable[[Piece], int]) -> dict[str, int]:
    counts = dict.fromkeys(PARTS, 0)
    for piece in pieces_of(spec):
        counts[piece.part] += count(piece)
    return {part: number for part, number in counts.items() if number}


def hours(spec: s.Spec, workload: Workload, tokens: int, gflops: float) -> float:
    """Hours of training on `tokens` tokens, source and target together, at `gflops` GFLOP/s."""
    return training_flops(spec, workload) * (tokens / workload.tokens) / (gflops * 1e9) / 3_600


# ── Bytes ─────────────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of a training step, and of the KV cache."""

    weights: int
    gradients: int
    adam: int  # two float32 moments of every parameter
    muon: int  # one moment of each matrix inside the layers, Adam's two of all other weights
    activations: int  # estimate of what autograd saves for the backward pass
    cache: int  # of all layers for the batch, cross-attention included
    cache_per_token: int  # of one sequence, without cross-attention


def memory(spec: s.Spec, workload: Workload, dtype: str = "float32") -> MemoryEstimate:
    """Memory of a training step and of generation; with int8 weights all else stays float32."""
    dtype_bytes = 4 if dtype == "int8" else DTYPE_BYTES[dtype]
    pieces = pieces_of(spec)
    total = sum(piece.n_parameters for piece in pieces)
    matrices = sum(
        p.n_parameters
        for p in pieces
        if p.part in LAYER_PARTS and isinstance(p, Weight) and len(p.shape) == 2 and p.copies == 1
    )
    cached, cached_cross = cached_values(spec), cached_cross_values(spec)
    in_cache = windowed_cache_values(spec, workload.target) + workload.source * cached_cross
    return MemoryEstimate(
        weights=total * DTYPE_BYTES[dtype],
        gradients=total * dtype_bytes,
        adam=2 * 4 * total,
        muon=4 * matrices + 2 * 4 * (total - matrices),
        activations=activation_bytes(spec, workload, dtype_bytes),
        cache=dtype_bytes * workload.batch * in_cache,
        cache_per_token=dtype_bytes * cached,
    )


def cached_values(spec: s.Spec) -> int:
    """Values in the KV cache for one token, all layers.

    Attention stores 2 n_kv_heads d_head, latent attention kv_lora_rank + qk_rope_head_dim.
    """
    return windowed_cache_values(spec, 1)


def cached_cross_values(spec: s.Spec) -> int:
    """Values that cross-attention caches for one source token, all layers."""
    crosses = [layer.cross for layer in _decoder_layers(spec) if layer.cross]
    return sum(_cached(cross, spec.d_model) for cross in crosses)


def windowed_cache_values(spec: s.Spec, length: int) -> int:
    """Values in the KV cache of a sequence of `length` tokens: sliding windows keep their size."""
    causal = spec.decoder is not None and spec.decoder.causal
    return sum(
        _cached(layer.mixer, spec.d_model, causal)
        * min(length, _cached_tokens(layer.mixer, causal, length))
        for layer in _decoder_layers(spec)
    )


def _cached_tokens(mixer: s.Mixer, causal: bool, length: int) -> int:
    """How many tokens a cache keeps; a recurrence keeps one state instead of tokens."""
    match mixer:
        case s.Attention(window=int(window)):
            return window
        case s.Recurrent() if causal:
            return 1
        case s.Convolution() if causal:
            return (mixer.width - 1) * mixer.dilation + 1
        case s.Pooling() if causal:
            return mixer.width
        case _:
            return length


def _cached(mixer: s.Mixer, d_model: int, causal: bool = True) -> int:
    match mixer:
        case s.Attention():
            return 2 * mixer.n_kv_heads * mixer.d_head
        case s.LatentAttention():
            return mixer.kv_lora_rank + mixer.qk_rope_head_dim
        case s.Recurrent() if causal:
            return (2 if mixer.cell == "lstm" else 1) * d_model
        case _:
            return d_model  # the other mixers cache the residual stream


def _decoder_layers(spec: s.Spec) -> list[s.Layer]:
    return spec.decoder.each_layer() if spec.decoder else []


# ── Activations, estimated ────────────────────────────────────────────────────────────────────
# Arrays of width d_ff that autograd saves for an activation function.
SAVED_ARRAYS: Mapping[str, int] = {"relu": 1, "relu2": 2, "gelu": 2, "gelu_tanh": 2, "silu": 2}


def activation_bytes(spec: s.Spec, workload: Workload, bytes_per_value: int) -> int:
    """Estimate: b x sum over layers of s x values saved per token, and a byte per dropout element.

    A sublayer saves the input and the output of its norm, 2 d (RMSNorm: 3 d); attention its q, k,
    v and output; a feed-forward d_ff once (relu), twice (gelu, silu) or four times (gated silu).
    The fused kernel does not store the score matrix. The head saves its input and that input's
    gradient; logits are computed in chunks of 4 MB.
    """
    values = dropout_values = 0
    for stack, side in stacks_of(spec):
        length, dropouts = workload.length(side), 1  # of the embedding
        for layer in stack.each_layer():
            values += length * saved_by_layer(layer, spec.d_model, length)
            dropouts += 1 + (layer.cross is not None) + (layer.feed_forward is not None)
        dropout_values += length * spec.d_model * dropouts
    values += workload.source * cached_cross_values(spec)
    values += 3 * spec.d_model * (workload.target or workload.source)
    return workload.batch * (bytes_per_value * values + (dropout_values if spec.dropout else 0))


def saved_by_layer(layer: s.Layer, d: int, length: int) -> int:
    """Values that autograd saves per token of a layer."""
    norm = (3 if layer.norm.kind == "rms" else 2) * d
    saved = norm + _saved_by_mixer(layer.mixer, d, length)
    if layer.cross:
        saved += norm + 2 * layer.cross.n_heads * layer.cross.d_head
        saved += 3 * layer.cross.n_heads * length if layer.cross.dropout else 0
    if layer.feed_forward:
        saved += norm + _saved_by_feed_forward(layer.feed_forward, d)
    return saved


def _saved_by_mixer(mixer: s.Mixer, d: int, length: int) -> int:
    match mixer:
        case s.Attention():
            # With dropout there is no fused kernel: weights, dropped weights and mask are stored.
            weights = 3 * mixer.n_heads * length if mixer.dropout else 0
            return 2 * (mixer.n_heads + mixer.n_kv_heads) * mixer.d_head + weights
        case s.LatentAttention():
            d_key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
            latent = mixer.kv_lora_rank + mixer.qk_rope_head_dim + (mixer.q_lora_rank or 0)
            # With values narrower than keys the CPU has no fused kernel: the weights are stored.
            weights = 0 if mixer.v_head_dim == d_key else length
            return mixer.n_heads * (2 * (d_key + mixer.v_head_dim) + weights) + 2 * latent
        case s.Recurrent():
            return (6 if mixer.cell == "lstm" else 5) * d
        case s.TokenMlp():
            return 2 * d
        case s.Convolution() | s.Pooling():
            return d
        case s.Custom():
            raise AssertionError("pieces_of refuses custom parts")


def _saved_by_feed_forward(part: s.FeedForward, d: int) -> int:
    match part:
        case s.Dense():
            return SAVED_ARRAYS[part.activation] * part.d_ff
        case s.Gated():
            return (2 + SAVED_ARRAYS[part.activation]) * part.d_ff
        case s.MixtureOfExperts():
            # input and output, each in token order and in expert order
            expert = 4 * d + _saved_by_feed_forward(part.expert, d)
            shared = _saved_by_feed_forward(part.shared_expert, d) if part.shared_expert else 0
            return part.n_experts + part.n_experts_per_token * expert + shared
        case s.Custom():
            raise AssertionError("pieces_of refuses custom parts")
