"""The well-known formulas beside the exact figures, and why they differ.

In: a spec and a Load. Out: comparisons; in each, the reasons add up to the whole difference, so none is left unsaid.
The formulas assume d_ff = 4 d, plain multi-head attention and no head. Told in docs/cost.md, "Formulas".
"""

from collections.abc import Iterable
from dataclasses import dataclass

from qkv.messages import _
from qkv.model import spec as s
from qkv.plan import cost
from qkv.plan.pieces import Load, Piece, Side, Weight, layer_pieces


@dataclass(frozen=True)
class Reason:
    """Some words, and the part of the difference that they explain."""

    words: str
    difference: float


@dataclass(frozen=True)
class Comparison:
    """A formula and its value, the exact figure, and the reasons: exact = formula + all differences."""

    what: str
    formula: str
    by_formula: float
    exact: float
    why: tuple[Reason, ...]


def beside_the_notes(
    spec: s.Spec, load: Load, dtype: str = "float32", tokens: int | None = None
) -> list[Comparison]:
    """All comparisons; training compute is for `tokens`, or for one token where none are given."""
    made = [
        _layer_parameters(spec),
        _all_parameters(spec),
        _feed_forward_share(spec),
        _forward(spec, load),
        _training(spec, load),
        _compute(spec, load, tokens or 1),
    ]
    return made if spec.decoder is None else [*made, _cache(spec, dtype)]


# ── Parameters ───────────────────────────────────────────────────────────────────────────────────────────────────
def _layer_parameters(spec: s.Spec) -> Comparison:
    d2, pieces = _n_layers(spec) * spec.d_model**2, _in_layers(spec)
    matrices = [piece for piece in pieces if isinstance(piece, Weight) and len(piece.shape) > 1]
    vectors = [piece for piece in pieces if isinstance(piece, Weight) and len(piece.shape) == 1]
    why = _reasons(
        (_attention_words(spec), _numbers(matrices, "attention") - 4 * d2),
        (_("cross-attention in every decoder layer"), _numbers(matrices, "cross")),
        (_feed_forward_words(spec), _numbers(matrices, "feed_forward") - 8 * d2),
        (_("biases"), _numbers(vectors, *cost.HIDDEN)),
        (_("norms"), _numbers(vectors, "norms")),
    )
    what = _("parameters of the layers")
    return Comparison(what, "12 l d²", 12 * d2, sum(piece.numbers for piece in pieces), why)


def _all_parameters(spec: s.Spec) -> Comparison:
    layers, total = _layer_parameters(spec), cost.parameters(spec)
    formula = layers.by_formula + spec.vocab_size * spec.d_model
    outside = total.get("norms", 0) - _numbers(_in_layers(spec), "norms")
    other_tables = total["embedding"] - spec.vocab_size * spec.d_model
    why = _reasons(
        (_("the layers, as above"), layers.exact - layers.by_formula),
        (_("tables of places, sentence types or a second vocabulary"), other_tables),
        (_("a head of its own"), total.get("head", 0)),
        (_("norms outside the layers"), outside),
    )
    return Comparison(_("parameters, all"), "12 l d² + V d", formula, sum(total.values()), why)


def _feed_forward_share(spec: s.Spec) -> Comparison:
    pieces = _in_layers(spec)
    share = _numbers(pieces, "feed_forward") / sum(piece.numbers for piece in pieces)
    of_all = cost.parameters(spec)["feed_forward"] / sum(cost.parameters(spec).values())
    words = _("of the layers; of the whole model, tables included, {of_all:.1%}", of_all=of_all)
    why = (Reason(words, share - 2 / 3),)
    return Comparison(_("the feed-forward's share"), "8 d² / 12 d²", 2 / 3, share, why)


# ── FLOPs ────────────────────────────────────────────────────────────────────────────────────────────────────────
def _forward(spec: s.Spec, load: Load) -> Comparison:
    exact, d = cost.flops(spec, load), spec.d_model
    maps = sum(
        load.batch * length * d**2 for length in _lengths(spec, load)
    )  # b s d², summed over layers
    pairs = sum(load.batch * length**2 * d for length in _lengths(spec, load))  # b s² d
    why = _reasons(
        (_attention_words(spec), exact.get("attention", 0) - 8 * maps),
        (_scores_words(spec), exact.get("scores", 0) - 4 * pairs),
        (_("cross-attention"), exact.get("cross", 0) + exact.get("cross_scores", 0)),
        (_feed_forward_words(spec, active=True), exact["feed_forward"] - 16 * maps),
        (_head_words(spec), exact.get("head", 0)),
    )
    formula = 24 * maps + 4 * pairs
    return Comparison(
        _("FLOPs forward"), "l (24 b s d² + 4 b s² d)", formula, sum(exact.values()), why
    )


def _training(spec: s.Spec, load: Load) -> Comparison:
    forward, exact = _forward(spec, load), cost.training_flops(spec, load)
    words = _(
        "three times forward's difference; a fused kernel also works out its scores again (not counted)"
    )
    why = _reasons((words, exact - 3 * forward.by_formula))
    return Comparison(_("FLOPs of a training step"), "3 x", 3 * forward.by_formula, exact, why)


def _compute(spec: s.Spec, load: Load, tokens: int) -> Comparison:
    n, exact = 12 * _n_layers(spec) * spec.d_model**2, cost.flops(spec, load)
    each = 3 * tokens / load.tokens  # training, for each of the tokens
    maps = sum(exact.get(part, 0) for part in cost.HIDDEN)
    why = _reasons(
        (_met_words(spec), each * maps - 6 * n * tokens),
        (
            _("scores and mixing, which have no weights"),
            each * (exact.get("scores", 0) + exact.get("cross_scores", 0)),
        ),
        (_("the head"), each * exact.get("head", 0)),
    )
    what = (
        _("training compute, {tokens:,} tokens", tokens=tokens)
        if tokens > 1
        else _("training compute of a token")
    )
    return Comparison(what, "C = 6 N D", 6 * n * tokens, each * sum(exact.values()), why)


# ── The cache ────────────────────────────────────────────────────────────────────────────────────────────────────
def _cache(spec: s.Spec, dtype: str) -> Comparison:
    assert spec.decoder is not None
    exact = cost.memory(spec, Load(1, 0, 1), dtype).cache_per_token
    width = exact // cost.cached_numbers(spec)  # bytes of one number
    formula = width * 2 * len(spec.decoder.each_layer()) * spec.d_model
    what = _("cache bytes of a token")
    return Comparison(
        what, f"2 l d x {width}", formula, exact, _reasons((_cache_words(spec), exact - formula))
    )


# ── In words ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _attention_words(spec: s.Spec) -> str:
    mixer = _each_layer(spec)[0].mixer
    match mixer:
        case s.Heads() if mixer.n_heads * mixer.d_head != spec.d_model:
            return _(
                "{n_heads} heads of {d_head}, {n_kv_heads} for keys and values: not d wide",
                n_heads=mixer.n_heads,
                d_head=mixer.d_head,
                n_kv_heads=mixer.n_kv_heads,
            )
        case s.Heads():
            return _(
                "{n_kv_heads} key/value heads serve {n_heads} query heads",
                n_kv_heads=mixer.n_kv_heads,
                n_heads=mixer.n_heads,
            )
        case s.Latent():
            return _("keys and values are unfolded from a short vector")
        case _:
            return _("another mixer stands in attention's place")


def _scores_words(spec: s.Spec) -> str:
    match _each_layer(spec)[0].mixer:
        case s.Heads() | s.Latent():
            return _("all heads together are not d wide")
        case _:
            return _("no pair of tokens is compared as attention does")


def _feed_forward_words(spec: s.Spec, active: bool = False) -> str:
    part = _each_layer(spec)[-1].feed_forward
    match part:
        case s.Experts():
            n = part.n_active if active else part.n_experts
            also = _(" and a shared one") if part.shared else ""
            return _("{n} experts of width {d_ff}", n=n, d_ff=part.each.d_ff) + also
        case s.Gated():
            return _("three maps (gated), d_ff = {d_ff:.3g} d", d_ff=part.d_ff / spec.d_model)
        case s.Dense():
            return f"d_ff = {part.d_ff / spec.d_model:.3g} d"


def _head_words(spec: s.Spec) -> str:
    if isinstance(spec.head, s.Pooler):
        return _("the pooler: 2 b d²")
    return _("the head: 2 b s d V for logits")


def _met_words(spec: s.Spec) -> str:
    if spec.encoder and spec.decoder:
        return _("a token meets the maps of its own side only")
    return _("the maps a token really meets")


def _cache_words(spec: s.Spec) -> str:
    mixer = _each_layer(spec)[-1].mixer
    match mixer:
        case s.Heads():
            return _(
                "{n_kv_heads} key/value heads of {d_head}",
                n_kv_heads=mixer.n_kv_heads,
                d_head=mixer.d_head,
            )
        case s.Latent():
            return _(
                "one latent of {kv_rank} + {d_rope} for all heads",
                kv_rank=mixer.kv_rank,
                d_rope=mixer.d_rope,
            )
        case _:
            return _("the stream itself is kept")


# ── Helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _reasons(*candidates: tuple[str, float]) -> tuple[Reason, ...]:
    return tuple(Reason(words, difference) for words, difference in candidates if difference)


def _numbers(pieces: Iterable[Piece], *parts: str) -> int:
    return sum(piece.numbers for piece in pieces if piece.part in parts)


def _each_layer(spec: s.Spec) -> list[s.Layer]:
    return [
        layer for stack in (spec.encoder, spec.decoder) if stack for layer in stack.each_layer()
    ]


def _n_layers(spec: s.Spec) -> int:
    return len(_each_layer(spec))


def _lengths(spec: s.Spec, load: Load) -> list[int]:
    """How many tokens each layer reads."""
    sides = ((spec.encoder, load.source), (spec.decoder, load.target))
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
        for piece in layer_pieces(layer, spec, stack.sees, side)
    ]
