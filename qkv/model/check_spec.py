"""Check a spec: values that have the right type but give no valid model.

Each problem has a path, what is wrong and what would be right.
See docs/model.md, "Checking a spec".
"""

from collections.abc import Iterator

from qkv.errors import QkvError
from qkv.messages import _, listed
from qkv.model import spec as s

SpecProblem = tuple[str, str, str]  # path, what is wrong, what would be right


def check_spec(spec: s.Spec, where: str = "spec") -> None:
    """Raise one error that names every invalid value, with its path and the remedy."""
    problems = problems_of(spec)
    if problems:
        raise spec_error(where, problems)


def spec_error(where: str, problems: list[SpecProblem]) -> QkvError:
    """One error that names all problems."""
    (path, wrong, right), *rest = problems
    more = [f"{at}: {what}; {remedy}" if at else f"{what}; {remedy}" for at, what, remedy in rest]
    return QkvError(f"{where}, {path}" if path else where, wrong, " | ".join([right, *more]))


def problems_of(spec: s.Spec) -> list[SpecProblem]:
    """Every invalid value, in the order of the file."""
    return [*_sizes(spec), *_positions(spec.positions), *_stacks(spec)]


def rotated_width(mixer: s.Mixer, positions: s.Positions) -> int:
    """The number of dimensions of each head that RoPE rotates; 0 without RoPE."""
    match positions, mixer:
        case s.Rotary(), s.Attention(): return int(mixer.d_head * positions.partial_rotary_factor)
        case s.Rotary(), s.LatentAttention(): return mixer.qk_rope_head_dim
        case _: return 0


def _sizes(spec: s.Spec) -> Iterator[SpecProblem]:
    for name in ("vocab_size", "d_model", "max_len"):
        yield from _at_least(name, getattr(spec, name), 1)
    yield from _at_least("token_types", spec.token_types, 0)
    if spec.source_vocab_size is not None:
        yield from _at_least("source_vocab_size", spec.source_vocab_size, 1)
    if not 0 <= spec.dropout < 1:
        wrong = _("{dropout} is not a probability", dropout=spec.dropout)
        yield "dropout", wrong, _("use 0 <= dropout < 1")
    if isinstance(spec.positions, s.Sinusoidal) and spec.d_model % 2:
        wrong = _("{d_model} is odd; sines and cosines come in pairs", d_model=spec.d_model)
        yield "d_model", wrong, _("use {d_model}", d_model=spec.d_model + 1)
    if spec.source_vocab_size is not None and (spec.encoder is None or spec.decoder is None):
        wrong = _("only an encoder-decoder model has a source vocabulary")
        yield "source_vocab_size", wrong, _("use null")


def _positions(positions: s.Positions) -> Iterator[SpecProblem]:
    if isinstance(positions, s.Learned):
        yield from _at_least("positions.first", positions.first, 0)
    if not isinstance(positions, s.Rotary):
        return
    if not 0 < positions.partial_rotary_factor <= 1:
        wrong = _("{value} is not a fraction", value=positions.partial_rotary_factor)
        yield "positions.partial_rotary_factor", wrong, _("use more than 0 and at most 1")
    yield from _more_than("positions.theta", positions.theta, 1)
    if positions.scaling is not None:
        yield from _scaling("positions.scaling", positions.scaling)


def _scaling(path: str, scaling: s.Scaling) -> Iterator[SpecProblem]:
    yield from _more_than(f"{path}.factor", scaling.factor, 0)
    if isinstance(scaling, s.LlamaScaling | s.YarnScaling):
        yield from _at_least(f"{path}.original_max_len", scaling.original_max_len, 1)
    if isinstance(scaling, s.LlamaScaling):
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        yield from _more_than(f"{path}.high_freq_factor", high, low)
    if isinstance(scaling, s.YarnScaling):
        yield from _more_than(f"{path}.beta_slow", scaling.beta_slow, 0)
        yield from _more_than(f"{path}.beta_fast", scaling.beta_fast, scaling.beta_slow)


def _stacks(spec: s.Spec) -> Iterator[SpecProblem]:
    if spec.encoder is None and spec.decoder is None:
        right = _("give an encoder, a decoder or both")
        yield "", _("neither an encoder nor a decoder"), right
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is not None:
            needs_cross = name == "decoder" and bool(spec.encoder)
            yield from _rotated_widths(name, stack, spec)
            for index, layer in enumerate(stack.layers):
                yield from _layer(f"{name}.{index}", layer, spec, needs_cross)


def _rotated_widths(name: str, stack: s.Stack, spec: s.Spec) -> Iterator[SpecProblem]:
    if not stack.layers:
        yield f"{name}.layers", _("is empty"), _("give at least one layer")
    widths = {rotated_width(layer.mixer, spec.positions) for layer in stack.layers} - {0}
    if len(widths) > 1:
        wrong = _("RoPE rotates different numbers of dimensions: {widths}", widths=sorted(widths))
        yield f"{name}.layers", wrong, _("use one number in all layers of a stack")


def _layer(path: str, layer: s.Layer, spec: s.Spec, needs_cross: bool) -> Iterator[SpecProblem]:
    yield from _at_least(f"{path}.repeat", layer.repeat, 1)
    yield from _mixer(f"{path}.mixer", layer.mixer, spec)
    yield from _feed_forward(f"{path}.feed_forward", layer.feed_forward)
    yield from _at_least(f"{path}.norm.eps", layer.norm.eps, 0)
    if layer.cross is not None and not needs_cross:
        yield f"{path}.cross", _("cross-attention needs an encoder"), _("use null")
    elif layer.cross is not None:
        yield from _cross(f"{path}.cross", layer.cross)
    elif needs_cross:
        wrong = _("is missing, and there is an encoder")
        yield f"{path}.cross", wrong, _("give the cross-attention to its memory")


def _cross(path: str, heads: s.Attention) -> Iterator[SpecProblem]:
    yield from _attention(path, heads)
    if heads.window is not None:
        wrong = _("positions of source and target are unrelated, so there is no window")
        yield f"{path}.window", wrong, _("use null")


def _mixer(path: str, mixer: s.Mixer, spec: s.Spec) -> Iterator[SpecProblem]:
    match mixer:
        case s.Attention(): yield from _attention(path, mixer)
        case s.LatentAttention(): yield from _latent(path, mixer, spec)
        case s.Recurrent() if spec.d_model % 2:
            wrong = _("a bidirectional RNN cannot split an odd width in two")
            yield "d_model", wrong, _("use an even number")
        case s.Convolution() | s.Pooling(): yield from _at_least(f"{path}.width", mixer.width, 1)
    width = rotated_width(mixer, spec.positions)
    is_rope = isinstance(spec.positions, s.Rotary) and isinstance(mixer, s.Attention)
    if width % 2 or (is_rope and width == 0):
        wrong = _("{width} rotated dimensions cannot be paired", width=width)
        yield path, wrong, _("use an even number, at least 2")


def _attention(path: str, heads: s.Attention) -> Iterator[SpecProblem]:
    for name in ("n_heads", "n_kv_heads", "d_head"):
        yield from _at_least(f"{path}.{name}", getattr(heads, name), 1)
    if heads.window is not None:
        yield from _at_least(f"{path}.window", heads.window, 1)
    n_heads, n_kv_heads = heads.n_heads, heads.n_kv_heads
    if n_heads > 0 and n_kv_heads > 0 and n_heads % n_kv_heads:
        divisors = [str(n) for n in range(1, n_heads + 1) if n_heads % n == 0]
        wrong = _("{n_heads} query heads cannot share {n_kv_heads} key/value heads",
                  n_heads=n_heads, n_kv_heads=n_kv_heads)
        names, last = listed(divisors[:-1]), divisors[-1]
        yield path, wrong, _("use {names} or {last}", names=names, last=last)


def _latent(path: str, latent: s.LatentAttention, spec: s.Spec) -> Iterator[SpecProblem]:
    for name in ("n_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        yield from _at_least(f"{path}.{name}", getattr(latent, name), 1)
    if latent.q_lora_rank is not None:
        yield from _at_least(f"{path}.q_lora_rank", latent.q_lora_rank, 1)
    if not isinstance(spec.positions, s.Rotary):
        wrong = _("latent attention needs rotary positions")
        yield path, wrong, _('use {{"kind": "rotary"}}')


def _feed_forward(path: str, spec: s.FeedForward) -> Iterator[SpecProblem]:
    if not isinstance(spec, s.MixtureOfExperts):
        yield from _at_least(f"{path}.d_ff", spec.d_ff, 1)
        return
    yield from _at_least(f"{path}.n_experts", spec.n_experts, 1)
    yield from _at_least(f"{path}.expert.d_ff", spec.expert.d_ff, 1)
    if spec.expert.bias:
        yield f"{path}.expert.bias", _("routed experts have no biases"), _("use false")
    if spec.shared_expert is not None:
        yield from _at_least(f"{path}.shared_expert.d_ff", spec.shared_expert.d_ff, 1)
    n_experts, per_token = spec.n_experts, spec.n_experts_per_token
    if not 1 <= per_token <= n_experts:
        wrong = _("{n_experts_per_token} of {n_experts} experts",
                  n_experts_per_token=per_token, n_experts=n_experts)
        right = _("use 1 to {n_experts}", n_experts=n_experts)
        yield f"{path}.n_experts_per_token", wrong, right
    yield from _expert_groups(path, spec)


def _expert_groups(path: str, spec: s.MixtureOfExperts) -> Iterator[SpecProblem]:
    n_experts, n_groups, n_active_groups = spec.n_experts, spec.n_groups, spec.n_active_groups
    if n_groups < 1 or n_experts % n_groups or not 1 <= n_active_groups <= n_groups:
        wrong = _("{n_experts} experts cannot form {n_groups} groups with {n_active_groups} active",
                  n_experts=n_experts, n_groups=n_groups, n_active_groups=n_active_groups)
        yield f"{path}.n_groups", wrong, _("use a divisor of the number of experts")
        return
    n_candidates = n_experts // n_groups * n_active_groups
    if n_candidates < spec.n_experts_per_token <= n_experts:
        wrong = _("the active groups have {n_candidates} experts, {n_experts_per_token} are needed",
                  n_candidates=n_candidates, n_experts_per_token=spec.n_experts_per_token)
        yield f"{path}.n_active_groups", wrong, _("use more active groups")


def _more_than(path: str, value: float, bound: float) -> Iterator[SpecProblem]:
    if not value > bound:  # nan is an error too
        yield path, _("cannot be {value}", value=value), _("use more than {bound}", bound=bound)


def _at_least(path: str, value: float, least: int) -> Iterator[SpecProblem]:
    if not value >= least:
        yield path, _("cannot be {value}", value=value), _("use at least {least}", least=least)
