"""What cannot be: values that fit their types and yet make no model.

In: a Spec. Out: each impossible value as (path, what is wrong, what would be right).
Told in docs/model.md, "What can be wrong".
"""

from collections.abc import Iterator

from qkv.messages import _, listed
from qkv.model import spec as s

Problem = tuple[str, str, str]  # path, what is wrong, what would be right


def problems_of(spec: s.Spec) -> list[Problem]:
    """Every impossible value, in the order of the file."""
    return [*_sizes(spec), *_positions(spec.positions), *_stacks(spec)]


def turned_width(mixer: s.Mixer, positions: s.Positions) -> int:
    """How many dimensions of each head rotary positions turn; 0 where there is nothing to turn."""
    match positions, mixer:
        case s.Rotary(), s.Heads(): return int(mixer.d_head * positions.share)
        case s.Rotary(), s.Latent(): return mixer.d_rope
        case _: return 0


def _sizes(spec: s.Spec) -> Iterator[Problem]:
    for name in ("vocab_size", "d_model", "max_len"):
        yield from _at_least(name, getattr(spec, name), 1)
    yield from _at_least("token_types", spec.token_types, 0)
    if spec.source_vocab_size is not None:
        yield from _at_least("source_vocab_size", spec.source_vocab_size, 1)
    if not 0 <= spec.dropout < 1:
        wrong = _("{dropout} is no share", dropout=spec.dropout)
        yield "dropout", wrong, _("use 0 <= dropout < 1")
    if isinstance(spec.positions, s.Sinusoidal) and spec.d_model % 2:
        wrong = _("{d_model} is odd; sines and cosines come in pairs", d_model=spec.d_model)
        yield "d_model", wrong, _("use {d_model}", d_model=spec.d_model + 1)
    if spec.source_vocab_size is not None and (spec.encoder is None or spec.decoder is None):
        wrong = _("only an encoder-decoder has a source")
        yield "source_vocab_size", wrong, _("use null")


def _positions(positions: s.Positions) -> Iterator[Problem]:
    if isinstance(positions, s.Learned):
        yield from _at_least("positions.first", positions.first, 0)
    if not isinstance(positions, s.Rotary):
        return
    if not 0 < positions.share <= 1:
        wrong = _("{share} is no share", share=positions.share)
        yield "positions.share", wrong, _("use 0 < share <= 1")
    yield from _more_than("positions.base", positions.base, 1)
    scaling = positions.scaling
    if scaling is not None:
        yield from _more_than("positions.scaling.factor", scaling.factor, 0)
    if isinstance(scaling, s.LlamaScaling | s.YarnScaling):
        yield from _at_least("positions.scaling.first_len", scaling.first_len, 1)
    if isinstance(scaling, s.LlamaScaling):
        yield from _more_than("positions.scaling.high_factor", scaling.high_factor, scaling.low_factor)
    if isinstance(scaling, s.YarnScaling):
        yield from _more_than("positions.scaling.beta_slow", scaling.beta_slow, 0)
        yield from _more_than("positions.scaling.beta_fast", scaling.beta_fast, scaling.beta_slow)


def _stacks(spec: s.Spec) -> Iterator[Problem]:
    if spec.encoder is None and spec.decoder is None:
        right = _("give an encoder, a decoder or both")
        yield "", _("there is no stack"), right
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is not None:
            yield from _turned_widths(name, stack, spec)
            for index, layer in enumerate(stack.layers):
                yield from _layer(f"{name}.{index}", layer, spec, needs_cross=name == "decoder" and bool(spec.encoder))


def _turned_widths(name: str, stack: s.Stack, spec: s.Spec) -> Iterator[Problem]:
    if not stack.layers:
        yield f"{name}.layers", _("is empty"), _("give at least one layer")
    widths = sorted({width for layer in stack.layers if (width := turned_width(layer.mixer, spec.positions))})
    if len(widths) > 1:
        wrong = _("heads of different turned widths {widths}", widths=widths)
        yield f"{name}.layers", wrong, _("use one width in a stack")


def _layer(path: str, layer: s.Layer, spec: s.Spec, needs_cross: bool) -> Iterator[Problem]:
    yield from _at_least(f"{path}.repeat", layer.repeat, 1)
    yield from _mixer(f"{path}.mixer", layer.mixer, spec)
    yield from _feed_forward(f"{path}.feed_forward", layer.feed_forward)
    yield from _at_least(f"{path}.norm.eps", layer.norm.eps, 0)
    if layer.cross is not None and not needs_cross:
        yield f"{path}.cross", _("there is no encoder to look at"), _("use null")
    elif layer.cross is not None:
        yield from _cross(f"{path}.cross", layer.cross)
    elif needs_cross:
        wrong = _("is missing, and there is an encoder")
        yield f"{path}.cross", wrong, _("give heads to look at its memory")


def _cross(path: str, heads: s.Heads) -> Iterator[Problem]:
    yield from _heads(path, heads)
    if heads.window is not None:
        wrong = _("two sentences have no common places, so no window")
        yield f"{path}.window", wrong, _("use null")


def _mixer(path: str, mixer: s.Mixer, spec: s.Spec) -> Iterator[Problem]:
    match mixer:
        case s.Heads(): yield from _heads(path, mixer)
        case s.Latent(): yield from _latent(path, mixer, spec)
        case s.Recurrent() if spec.d_model % 2:
            wrong = _("two directions cannot share an odd width")
            yield "d_model", wrong, _("use an even one")
        case s.Convolution() | s.Pooling(): yield from _at_least(f"{path}.width", mixer.width, 1)
    width = turned_width(mixer, spec.positions)
    all_lost = width == 0 and isinstance(spec.positions, s.Rotary) and isinstance(mixer, s.Heads)
    if width % 2 or all_lost:
        wrong = _("{width} turned dimensions do not pair up", width=width)
        yield path, wrong, _("use an even number, at least 2")


def _heads(path: str, heads: s.Heads) -> Iterator[Problem]:
    for name in ("n_heads", "n_kv_heads", "d_head"):
        yield from _at_least(f"{path}.{name}", getattr(heads, name), 1)
    if heads.window is not None:
        yield from _at_least(f"{path}.window", heads.window, 1)
    if heads.n_heads > 0 and heads.n_kv_heads > 0 and heads.n_heads % heads.n_kv_heads:
        good = [str(n) for n in range(1, heads.n_heads + 1) if heads.n_heads % n == 0]
        wrong = _("{n_heads} query heads cannot share {n_kv_heads} key/value heads", n_heads=heads.n_heads, n_kv_heads=heads.n_kv_heads)
        yield path, wrong, _("use {names} or {last}", names=listed(good[:-1]), last=good[-1])


def _latent(path: str, latent: s.Latent, spec: s.Spec) -> Iterator[Problem]:
    for name in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_value"):
        yield from _at_least(f"{path}.{name}", getattr(latent, name), 1)
    if latent.q_rank is not None:
        yield from _at_least(f"{path}.q_rank", latent.q_rank, 1)
    if not isinstance(spec.positions, s.Rotary):
        wrong = _("latent attention needs rotary positions")
        yield path, wrong, _('use {{"kind": "rotary"}}')


def _feed_forward(path: str, part: s.FeedForward) -> Iterator[Problem]:
    if not isinstance(part, s.Experts):
        yield from _at_least(f"{path}.d_ff", part.d_ff, 1)
        return
    yield from _at_least(f"{path}.n_experts", part.n_experts, 1)
    yield from _at_least(f"{path}.each.d_ff", part.each.d_ff, 1)
    if part.each.bias:
        yield f"{path}.each.bias", _("routed experts have no biases"), _("use false")
    if part.shared is not None:
        yield from _at_least(f"{path}.shared.d_ff", part.shared.d_ff, 1)
    if not 1 <= part.n_active <= part.n_experts:
        wrong = _("{n_active} of {n_experts} experts", n_active=part.n_active, n_experts=part.n_experts)
        yield f"{path}.n_active", wrong, _("use 1 to {n_experts}", n_experts=part.n_experts)
    if part.n_groups < 1 or part.n_experts % part.n_groups or not 1 <= part.n_active_groups <= part.n_groups:
        wrong = _("{n_experts} experts do not fall into {n_groups} groups with {n_active_groups} active", n_experts=part.n_experts, n_groups=part.n_groups, n_active_groups=part.n_active_groups)
        yield f"{path}.n_groups", wrong, _("use a divisor of the experts")
    elif (within := part.n_experts // part.n_groups * part.n_active_groups) < part.n_active <= part.n_experts:
        wrong = _("{n_active} active experts do not fit into groups that hold {within}", n_active=part.n_active, within=within)
        yield f"{path}.n_active_groups", wrong, _("use more active groups")


def _more_than(path: str, value: float, bound: float) -> Iterator[Problem]:
    if not value > bound:  # so that nan is refused too
        yield path, _("cannot be {value}", value=value), _("use more than {bound}", bound=bound)


def _at_least(path: str, value: float, least: int) -> Iterator[Problem]:
    if not value >= least:
        yield path, _("cannot be {value}", value=value), _("use at least {least}", least=least)
