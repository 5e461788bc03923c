"""Well-known cost formulas (12 l d², 6 N D, ...) compared with the exact figures.

The formulas assume d_ff = 4 d, multi-head attention and no head; the reasons of a comparison add up
to the whole difference. See docs/cost.md.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.messages import _
from qkv.model import spec as s
from qkv.plan import cost
from qkv.plan.pieces import Piece, Side, Weight, Workload, layer_pieces


@dataclass(frozen=True)
class Reason:
    """A reason reasons a formula is not exact, and its part of the difference."""

    text: str
    difference: float


@dataclass(frozen=True)
class Comparison:
    """A formula, its estimate and the exact value: exact = estimate + sum of the differences."""

    quantity: str
    formula: str
    estimate: float
    exact: float
    reasons: tuple[Reason, ...]


def compare_formulas(
    spec: s.Spec, workload: Workload, dtype: str = "float32", tokens: int | None = None
) -> list[Comparison]:
    """All comparisons; training compute is for `tokens` tokens, by default one."""
    comparisons = [
        _layer_parameters(spec),
        _all_parameters(spec),
        _feed_forward_fraction(spec),
        _forward(spec, workload),
        _training(spec, workload),
        _compute(spec, workload, tokens or 1),
    ]
    return comparisons if spec.decoder is None else [*comparisons, _cache(spec, dtype)]


# ── Parameters ────────────────────────────────────────────────────────────────────────────────
def _layer_parameters(spec: s.Spec) -> Comparison:
    d2, pieces = _n_layers(spec) * spec.d_model**2, _in_layers(spec)
    matrices = [piece for piece in pieces if isinstance(piece, Weight) and len(piece.shape) > 1]
    vectors = [piece for piece in pieces if isinstance(piece, Weight) and len(piece.shape) == 1]
    reasons = _reasons(
        (_attention_reason(spec), _n_parameters(matrices, "attention") - 4 * d2),
        (_("cross-attention in every decoder layer"), _n_parameters(matrices, "cross")),
        (_feed_forward_reason(spec), _n_parameters(matrices, "feed_forward") - 8 * d2),
        (_("biases"), _n_parameters(vectors, *cost.LAYER_PARTS)),
        (_("norms"), _n_parameters(vectors, "norms")),
    )
    quantity = _("parameters of the layers")
    return Comparison(
        quantity, "12 l d²", 12 * d2, sum(piece.n_parameters for piece in pieces), reasons
    )


def _all_parameters(spec: s.Spec) -> Comparison:
    layers, total = _layer_parameters(spec), cost.parameters(spec)
    formula = layers.estimate + spec.vocab_size * spec.d_model
    outside = total.get("norms", 0) - _n_parameters(_in_layers(spec), "norms")
    other_embeddings = total["embedding"] - spec.vocab_size * spec.d_model
    reasons = _reasons(
        (_("the layers, as above"), layers.exact - layers.estimate),
        (_("embeddings of positions, token types or a second vocabulary"), other_embeddings),
        (_("an untied head"), total.get("head", 0)),
        (_("norms outside the layers"), outside),
    )
    return Comparison(_("parameters, all"), "12 l d² + V d", formula, sum(total.values()), reasons)


def _feed_forward_fraction(spec: s.Spec) -> Comparison:
    pieces = _in_layers(spec)
    fraction = _n_parameters(pieces, "feed_forward") / sum(piece.n_parameters for piece in pieces)
    of_all = cost.parameters(spec)["feed_forward"] / sum(cost.parameters(spec).values())
    text = _("fraction of the layers; of the whole model {of_all:.1%}", of_all=of_all)
    reasons = (Reason(text, fraction - 2 / 3),)
    return Comparison(_("parameters in the feed-forward"), "8 d² / 12 d²", 2 / 3, fraction, reasons)


# ── FLOPs ─────────────────────────────────────────────────────────────────────────────────────
def _forward(spec: s.Spec, workload: Workload) -> Comparison:
    exact, d = cost.flops(spec, workload), spec.d_model
    # b s d², summed over layers
    linear = sum(workload.batch * length * d**2 for length in _lengths(spec, workload))
    pairs = sum(workload.batch * length**2 * d for length in _lengths(spec, workload))  # b s² d
    reasons = _reasons(
        (_attention_reason(spec), exact.get("attention", 0) - 8 * linear),
        (_scores_reason(spec), exact.get("scores", 0) - 4 * pairs),
        (_("cross-attention"), exact.get("cross", 0) + exact.get("cross_scores", 0)),
        (_feed_forward_reason(spec, active=True), exact["feed_forward"] - 16 * linear),
        (_head_reason(spec), exact.get("head", 0)),
    )
    formula = 24 * linear + 4 * pairs
    return Comparison(
        _("FLOPs forward"), "l (24 b s d² + 4 b s² d)", formula, sum(exact.values()), reasons
    )


def _training(spec: s.Spec, workload: Workload) -> Comparison:
    forward, exact = _forward(spec, workload), cost.training_flops(spec, workload)
    text = _("3 x the difference of forward; recomputed scores of fused attention are not counted")
    reasons = _reasons((text, exact - 3 * forward.estimate))
    return Comparison(_("FLOPs of a training step"), "3 x", 3 * forward.estimate, exact, reasons)


def _compute(spec: s.Spec, workload: Workload, tokens: int) -> Comparison:
    n, exact = 12 * _n_layers(spec) * spec.d_model**2, cost.flops(spec, workload)
    passes = 3 * tokens / workload.tokens  # forward passes that cost as much as the training
    linear = sum(exact.get(part, 0) for part in cost.LAYER_PARTS)
    reasons = _reasons(
        (_used_reason(spec), passes * linear - 6 * n * tokens),
        (
            _("attention products, which have no parameters"),
            passes * (exact.get("scores", 0) + exact.get("cross_scores", 0)),
        ),
        (_("the output head"), passes * exact.get("head", 0)),
    )
    quantity = (
        _("training compute, {tokens:,} tokens", tokens=tokens)
        if tokens > 1
        else _("training compute per token")
    )
    return Comparison(quantity, "C = 6 N D", 6 * n * tokens, passes * sum(exact.values()), reasons)


# ── The cache ─────────────────────────────────────────────────────────────────────────────────
def _cache(spec: s.Spec, dtype: str) -> Comparison:
    assert spec.decoder is not None
    exact = cost.memory(spec, Workload(1, 0, 1), dtype).cache_per_token
    width = exact // cost.cached_values(spec)  # bytes of one value
    formula = width * 2 * len(spec.decoder.each_layer()) * spec.d_model
    quantity = _("KV cache bytes per token")
    return Comparison(
        quantity,
        f"2 l d x {width}",
        formula,
        exact,
        _reasons((_cache_reason(spec), exact - formula)),
    )


# ── Texts of the reasons ──────────────────────────────────────────────────────────────────────
def _attention_reason(spec: s.Spec) -> str:
    mixer = _each_layer(spec)[0].mixer
    match mixer:
        case s.Attention() if mixer.n_heads * mixer.d_head != spec.d_model:
            return _(
                "{n_heads} heads and {n_kv_heads} key/value heads of width {d_head}",
                n_heads=mixer.n_heads,
                d_head=mixer.d_head,
                n_kv_heads=mixer.n_kv_heads,
            )
        case s.Attention():
            return _(
                "{n_kv_heads} key/value heads for {n_heads} query heads",
                n_kv_heads=mixer.n_kv_heads,
                n_heads=mixer.n_heads,
            )
        case s.LatentAttention():
            return _("latent attention: keys and values from a low-rank vector")
        case _:
            return _("another mixer instead of attention")


def _scores_reason(spec: s.Spec) -> str:
    match _each_layer(spec)[0].mixer:
        case s.Attention() | s.LatentAttention():
            return _("total width of the heads is not d")
        case _:
            return _("no attention scores")


def _feed_forward_reason(spec: s.Spec, active: bool = False) -> str:
    part = _each_layer(spec)[-1].feed_forward
    match part:
        case s.MixtureOfExperts():
            n, d_ff = part.n_experts_per_token if active else part.n_experts, part.expert.d_ff
            if part.shared_expert:
                return _("{n} experts of width {d_ff} and a shared expert", n=n, d_ff=d_ff)
            return _("{n} experts of width {d_ff}", n=n, d_ff=d_ff)
        case s.Gated():
            return _("three matrices (gated), d_ff = {d_ff:.3g} d", d_ff=part.d_ff / spec.d_model)
        case s.Dense():
            return f"d_ff = {part.d_ff / spec.d_model:.3g} d"


def _head_reason(spec: s.Spec) -> str:
    if isinstance(spec.head, s.Pooler):
        return _("the pooler: 2 b d²")
    return _("the logits: 2 b s d V")


def _used_reason(spec: s.Spec) -> str:
    if spec.encoder and spec.decoder:
        return _("a token passes through one stack only")
    return _("active parameters of the layers")


def _cache_reason(spec: s.Spec) -> str:
    mixer = _each_layer(spec)[-1].mixer
    match mixer:
        case s.Attention():
            return _(
                "{n_kv_heads} key/value heads of width {d_head}",
                n_kv_heads=mixer.n_kv_heads,
                d_head=mixer.d_head,
            )
        case s.LatentAttention():
            return _(
                "one latent vector of {kv_lora_rank} + {qk_rope_head_dim} for all heads",
                kv_lora_rank=mixer.kv_lora_rank,
                qk_rope_head_dim=mixer.qk_rope_head_dim,
            )
        case _:
            return _("the residual stream is cached")


# ── Helpers ───────────────────────────────────────────────────────────────────────────────────
def _reasons(*candidates: tuple[str, float]) -> tuple[Reason, ...]:
    return tuple(Reason(text, difference) for text, difference in candidates if difference)


def _n_parameters(pieces: Iterable[Piece], *parts: str) -> int:
    return sum(piece.n_parameters for piece in pieces if piece.part in parts)


def _each_layer(spec: s.Spec) -> list[s.Layer]:
    return [
        layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.each_layer()
    ]


def _n_layers(spec: s.Spec) -> int:
    return len(_each_layer(spec))


def _lengths(spec: s.Spec, workload: Workload) -> list[int]:
    """Tokens of a sequence, for each layer."""
    sides = ((spec.encoder, workload.source), (spec.decoder, workload.target))
    return [length for stack, length in sides if stack for _ in stack.each_layer()]


def _in_layers(spec: s.Spec) -> list[Piece]:
    sides: tuple[tuple[s.Stack | None, Side], ...] = (
        (spec.encoder, "source"),
        (spec.decoder, "target"),
    )
    return [
        piece
        for stack, side in sides
        if stack
        for layer in stack.each_layer()
        for piece in layer_pieces(layer, spec, stack.causal, side)
    ]
