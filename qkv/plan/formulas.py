"""Well-known cost formulas (12 l d², 6 N D, ...) compared with the exact figures.

The formulas assume d_ff = 4 d, multi-head attention and no head; the reasons of a comparison add up
to the whole difference. See docs/explanation/cost.md.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qkv.messages import N_, _
from qkv.model import spec as s
from qkv.plan import cost
from qkv.plan.pieces import Weight, Workload, layer_pieces, stacks_of


@dataclass(frozen=True)
class Reason:
    """A reason why a formula is not exact, and its part of the difference."""

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
    d2, weights = len(_each_layer(spec)) * spec.d_model**2, _layer_weights(spec)
    matrices = [weight for weight in weights if len(weight.shape) > 1]
    vectors = [weight for weight in weights if len(weight.shape) == 1]
    return _comparison(
        _("parameters of the layers"),
        "12 l d²",
        12 * d2,
        sum(weight.n_parameters for weight in weights),
        (_attention_reason(spec), _n_parameters(matrices, "attention") - 4 * d2),
        (_("cross-attention in every decoder layer"), _n_parameters(matrices, "cross")),
        (_feed_forward_reason(spec), _n_parameters(matrices, "feed_forward") - 8 * d2),
        (_("biases"), _n_parameters(vectors, *cost.LAYER_PARTS)),
        (_("norms"), _n_parameters(vectors, "norms")),
    )


def _all_parameters(spec: s.Spec) -> Comparison:
    layers, total = _layer_parameters(spec), Counter(cost.parameters(spec))
    embedding, weights = spec.vocab_size * spec.d_model, _layer_weights(spec)
    other_embeddings = total["embedding"] - embedding
    return _comparison(
        _("parameters, all"),
        "12 l d² + V d",
        layers.estimate + embedding,
        total.total(),
        (_("the layers, as above"), layers.exact - layers.estimate),
        (_("embeddings of positions, token types or a second vocabulary"), other_embeddings),
        (_("an untied head"), total["head"]),
        (_("norms outside the layers"), total["norms"] - _n_parameters(weights, "norms")),
    )


def _feed_forward_fraction(spec: s.Spec) -> Comparison:
    feed_forward = cost.parameters(spec).get("feed_forward", 0)
    fraction = feed_forward / _layer_parameters(spec).exact
    of_all = feed_forward / sum(cost.parameters(spec).values())
    text = _("fraction of the layers; of the whole model {of_all:.1%}", of_all=of_all)
    reasons = (Reason(text, fraction - 2 / 3),)
    return Comparison(_("parameters in the feed-forward"), "8 d² / 12 d²", 2 / 3, fraction, reasons)


# ── FLOPs ─────────────────────────────────────────────────────────────────────────────────────
def _forward(spec: s.Spec, workload: Workload) -> Comparison:
    exact, d, b = Counter(cost.flops(spec, workload)), spec.d_model, workload.batch
    lengths = [workload.length(side) for stack, side in stacks_of(spec) for _ in stack.each_layer()]
    linear = b * sum(lengths) * d**2  # b s d², summed over layers
    pairs = b * sum(length**2 for length in lengths) * d  # b s² d
    return _comparison(
        _("FLOPs forward"),
        "l (24 b s d² + 4 b s² d)",
        24 * linear + 4 * pairs,
        exact.total(),
        (_attention_reason(spec), exact["attention"] - 8 * linear),
        (_scores_reason(spec), exact["scores"] - 4 * pairs),
        (_("cross-attention"), exact["cross"] + exact["cross_scores"]),
        (_feed_forward_reason(spec, active=True), exact["feed_forward"] - 16 * linear),
        (_head_reason(spec), exact["head"]),
    )


def _training(spec: s.Spec, workload: Workload) -> Comparison:
    estimate, exact = 3 * _forward(spec, workload).estimate, cost.training_flops(spec, workload)
    text = _("3 x the difference of forward; recomputed scores of fused attention are not counted")
    reason = text, exact - estimate
    return _comparison(_("FLOPs of a training step"), "3 x", estimate, exact, reason)


def _compute(spec: s.Spec, workload: Workload, tokens: int) -> Comparison:
    n, exact = _layer_parameters(spec).estimate, Counter(cost.flops(spec, workload))
    passes = 3 * tokens / workload.tokens  # forward passes that cost as much as the training
    linear = sum(exact[part] for part in cost.LAYER_PARTS)
    products = exact["scores"] + exact["cross_scores"]
    quantity = _("training compute per token")
    if tokens > 1:
        quantity = _("training compute, {tokens:,} tokens", tokens=tokens)
    return _comparison(
        quantity,
        "C = 6 N D",
        6 * n * tokens,
        passes * exact.total(),
        (_used_reason(spec), passes * linear - 6 * n * tokens),
        (_("attention products, which have no parameters"), passes * products),
        (_("the output head"), passes * exact["head"]),
    )


# ── The cache ─────────────────────────────────────────────────────────────────────────────────
def _cache(spec: s.Spec, dtype: str) -> Comparison:
    assert spec.decoder is not None
    exact = cost.memory(spec, Workload(1, 0, 1), dtype).cache_per_token
    width = exact // cost.cached_values(spec)  # bytes of one value
    estimate = width * 2 * len(spec.decoder.each_layer()) * spec.d_model
    quantity, reason = _("KV cache bytes per token"), (_cache_reason(spec), exact - estimate)
    return _comparison(quantity, f"2 l d x {width}", estimate, exact, reason)


# ── Texts of the reasons ──────────────────────────────────────────────────────────────────────
def _attention_reason(spec: s.Spec) -> str:
    mixer = _each_layer(spec)[0].mixer
    match mixer:
        case s.Attention() if mixer.n_heads * mixer.d_head != spec.d_model:
            text = N_("{n_heads} heads and {n_kv_heads} key/value heads of width {d_head}")
            return _(text, **vars(mixer))
        case s.Attention():
            return _("{n_kv_heads} key/value heads for {n_heads} query heads", **vars(mixer))
        case s.LatentAttention():
            return _("latent attention: keys and values from a low-rank vector")
        case _:
            return _("another mixer instead of attention")


def _scores_reason(spec: s.Spec) -> str:
    match _each_layer(spec)[0].mixer:
        case s.Attention(window=int(window)):
            return _("sliding window of {window} tokens, in blocks", window=window)
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
        case None:
            return _("no feed-forward")
        case s.Custom():
            raise AssertionError("pieces_of refuses custom parts")


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
            return _("{n_kv_heads} key/value heads of width {d_head}", **vars(mixer))
        case s.LatentAttention():
            text = N_("one latent vector of {kv_lora_rank} + {qk_rope_head_dim} for all heads")
            return _(text, **vars(mixer))
        case s.Recurrent():
            return _("the state of the recurrence, once for all tokens")
        case _:
            return _("the residual stream is cached")


# ── Helpers ───────────────────────────────────────────────────────────────────────────────────
def _comparison(
    quantity: str, formula: str, estimate: float, exact: float, *reasons: tuple[str, float]
) -> Comparison:
    """A comparison with those of the reasons that make a difference."""
    given = tuple(Reason(text, difference) for text, difference in reasons if difference)
    return Comparison(quantity, formula, estimate, exact, given)


def _n_parameters(weights: Iterable[Weight], *parts: str) -> int:
    return sum(weight.n_parameters for weight in weights if weight.part in parts)


def _each_layer(spec: s.Spec) -> list[s.Layer]:
    return [layer for stack, _ in stacks_of(spec) for layer in stack.each_layer()]


def _layer_weights(spec: s.Spec) -> list[Weight]:
    return [
        piece
        for stack, side in stacks_of(spec)
        for layer in stack.each_layer()
        for piece in layer_pieces(layer, spec, stack.causal, side)
        if isinstance(piece, Weight)
    ]
