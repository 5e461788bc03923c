"""Check a spec: values that have the right type but give no valid model.

Each problem has a path, what is wrong and what would be right.
See docs/explanation/model.md, "Checking a spec".
"""

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from qkv.messages import _, listed
from qkv.model import spec as s
from qkv.model.custom import IMPORT_PATH
from qkv.pydantic_errors import FieldProblem, to_error

SpecProblems = Iterator[FieldProblem]
MAX_LAYERS = 4_096  # of a stack, repeats expanded
MAX_WIDTH = 2**20  # a product of three sizes of a weight fits 63 bits
MOST = {  # the largest value of a field, where it is not MAX_WIDTH
    "vocab_size": 2**27, "source_vocab_size": 2**27, "max_len": 2**31 - 1,
    "original_max_len": 2**31 - 1, "repeat": MAX_LAYERS, "n_experts": 2**16, "eps": 1,
}  # fmt: skip
LEAST = {  # the smallest value of a field, in any part of the spec
    "vocab_size": 1, "d_model": 1, "max_len": 1, "token_types": 0, "source_vocab_size": 1,
    "first": 0, "original_max_len": 1, "repeat": 1, "n_heads": 1, "n_kv_heads": 1, "d_head": 1,
    "window": 1, "kv_lora_rank": 1, "qk_nope_head_dim": 1, "qk_rope_head_dim": 1, "v_head_dim": 1,
    "q_lora_rank": 1, "width": 1, "dilation": 1, "d_ff": 1, "n_experts": 1, "eps": 0,
}  # fmt: skip


def check_spec(spec: s.Spec, where: str = "spec") -> None:
    """Raise one error that names every invalid value, with its path and the remedy."""
    if problems := list(problems_of(spec)):
        raise to_error(where, problems)


def problems_of(spec: s.Spec) -> SpecProblems:
    """Every invalid value, in the order of the checks; NaN and infinity are reported once."""
    problems = list(_values(spec))
    named = {path for path, _wrong, _right in problems}
    yield from problems
    yield from (problem for problem in _not_finite(spec) if problem[0] not in named)


def _values(spec: s.Spec) -> SpecProblems:
    """Invalid sizes, positions, encoder and decoder."""
    yield from _sizes(spec)
    yield from _positions(spec.positions)
    yield from _custom(spec)
    if spec.encoder is None and spec.decoder is None:
        right = _("give an encoder, a decoder or both")
        yield "", _("neither an encoder nor a decoder"), right
    if spec.encoder is not None:
        yield from _stack("encoder", spec.encoder, spec, needs_cross=False)
    if spec.decoder is not None:
        yield from _stack("decoder", spec.decoder, spec, needs_cross=spec.encoder is not None)


def custom_parts(spec: s.Spec) -> dict[str, s.Custom]:
    """The custom parts of a spec, by their paths."""
    parts: dict[str, object] = {"positions": spec.positions}
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        for index, layer in enumerate(stack.layers if stack else ()):
            parts[f"{side}.{index}.mixer"] = layer.mixer
            parts[f"{side}.{index}.feed_forward"] = layer.feed_forward
    return {path: part for path, part in parts.items() if isinstance(part, s.Custom)}


def rotated_width(mixer: s.Mixer, positions: s.Positions) -> int:
    """The number of dimensions of each head that RoPE rotates; 0 without RoPE."""
    match positions, mixer:
        case s.Rotary(partial_rotary_factor=factor), s.Attention():
            # Any other factor is a problem of its own.
            return int(mixer.d_head * factor) if 0 < factor <= 1 else mixer.d_head
        case s.Rotary(), s.LatentAttention(): return mixer.qk_rope_head_dim
        case _: return 0


def _sizes(spec: s.Spec) -> SpecProblems:
    yield from _out_of_range("", spec)
    yield from _probability("dropout", spec.dropout)
    if isinstance(spec.positions, s.Sinusoidal) and spec.d_model % 2:
        wrong = _("{d_model} is odd; sines and cosines come in pairs", d_model=spec.d_model)
        yield "d_model", wrong, _("use {d_model}", d_model=spec.d_model + 1)
    if spec.source_vocab_size is not None and (spec.encoder is None or spec.decoder is None):
        wrong = _("only an encoder-decoder model has a source vocabulary")
        yield "source_vocab_size", wrong, _("use null")


def _positions(positions: s.Positions) -> SpecProblems:
    yield from _out_of_range("positions", positions)
    if not isinstance(positions, s.Rotary):
        return
    if not 0 < positions.partial_rotary_factor <= 1:
        wrong = _("{value} is not a fraction", value=positions.partial_rotary_factor)
        yield "positions.partial_rotary_factor", wrong, _("use more than 0 and at most 1")
    yield from _more_than("positions.theta", positions.theta, 1)
    path, scaling = "positions.scaling", positions.scaling
    if scaling is not None:
        yield from _more_than(f"{path}.factor", scaling.factor, 0)
        yield from _out_of_range(path, scaling)
    match scaling:
        case s.LlamaScaling(low_freq_factor=low, high_freq_factor=high):
            yield from _more_than(f"{path}.high_freq_factor", high, low)
        case s.YarnScaling(beta_slow=slow, beta_fast=fast):
            yield from _more_than(f"{path}.beta_slow", slow, 0)
            yield from _more_than(f"{path}.beta_fast", fast, slow)


def _custom(spec: s.Spec) -> SpecProblems:
    for path, part in custom_parts(spec).items():
        if not IMPORT_PATH.fullmatch(part.path):
            wrong = _("cannot be {value}", value=part.path)
            yield f"{path}.path", wrong, _("give an import path of the form package.module:Class")


def _stack(name: str, stack: s.Stack, spec: s.Spec, needs_cross: bool) -> SpecProblems:
    if not stack.layers:
        yield f"{name}.layers", _("is empty"), _("give at least one layer")
    n_layers = sum(layer.repeat for layer in stack.layers)
    if n_layers > MAX_LAYERS and len(stack.layers) > 1:
        wrong = _("{n_layers} layers", n_layers=n_layers)
        yield f"{name}.layers", wrong, _("use at most {most}", most=MAX_LAYERS)
    widths = {rotated_width(layer.mixer, spec.positions) for layer in stack.layers} - {0}
    if len(widths) > 1:
        wrong = _("RoPE rotates different numbers of dimensions: {widths}", widths=sorted(widths))
        yield f"{name}.layers", wrong, _("use one number in all layers of a stack")
    for index, layer in enumerate(stack.layers):
        path = f"{name}.{index}"
        yield from _out_of_range(path, layer)
        yield from _mixer(f"{path}.mixer", layer.mixer, spec)
        yield from _feed_forward(f"{path}.feed_forward", layer.feed_forward)
        yield from _out_of_range(f"{path}.norm", layer.norm)
        yield from _cross(f"{path}.cross", layer.cross, needs_cross)


def _mixer(path: str, mixer: s.Mixer, spec: s.Spec) -> SpecProblems:
    rotary, width = isinstance(spec.positions, s.Rotary), rotated_width(mixer, spec.positions)
    yield from _out_of_range(path, mixer)
    match mixer:
        case s.Attention():
            yield from _shared_heads(path, mixer)
            yield from _probability(f"{path}.dropout", mixer.dropout)
        case s.LatentAttention() if not rotary:
            wrong = _("latent attention needs rotary positions")
            yield path, wrong, _('use {{"kind": "rotary"}}')
        case s.Recurrent() if spec.d_model % 2:
            wrong = _("a bidirectional RNN cannot split an odd width in two")
            yield "d_model", wrong, _("use an even number")
    if width % 2 or (width == 0 and rotary and isinstance(mixer, s.Attention)):
        wrong = _("{width} rotated dimensions cannot be paired", width=width)
        yield path, wrong, _("use an even number, at least 2")


def _cross(path: str, cross: s.Attention | None, needs_cross: bool) -> SpecProblems:
    if cross is not None and needs_cross:
        yield from _out_of_range(path, cross)
        yield from _shared_heads(path, cross)
        yield from _probability(f"{path}.dropout", cross.dropout)
        if cross.window is not None:
            wrong = _("positions of source and target are unrelated, so there is no window")
            yield f"{path}.window", wrong, _("use null")
    elif cross is not None:
        yield path, _("cross-attention needs an encoder"), _("use null")
    elif needs_cross:
        wrong = _("is missing, and there is an encoder")
        yield path, wrong, _("give the cross-attention to its memory")


def _shared_heads(path: str, heads: s.Attention) -> SpecProblems:
    n_heads, n_kv_heads = heads.n_heads, heads.n_kv_heads
    if 0 < n_heads <= MAX_WIDTH and n_kv_heads > 0 and n_heads % n_kv_heads:
        *divisors, last = [n for n in range(1, n_heads + 1) if n_heads % n == 0]
        wrong = _("{n_heads} query heads cannot share {n_kv_heads} key/value heads", **vars(heads))
        yield path, wrong, _("use {names} or {last}", names=listed(divisors), last=last)


def _feed_forward(path: str, spec: s.FeedForward | None) -> SpecProblems:
    yield from _out_of_range(path, spec)
    if not isinstance(spec, s.MixtureOfExperts):
        return
    yield from _out_of_range(f"{path}.expert", spec.expert)
    if spec.expert.bias:
        yield f"{path}.expert.bias", _("routed experts have no biases"), _("use false")
    yield from _out_of_range(f"{path}.shared_expert", spec.shared_expert)
    if not 1 <= spec.n_experts_per_token <= spec.n_experts:
        wrong = _("{n_experts_per_token} of {n_experts} experts", **vars(spec))
        yield f"{path}.n_experts_per_token", wrong, _("use 1 to {n_experts}", **vars(spec))
    yield from _expert_groups(path, spec)


def _expert_groups(path: str, spec: s.MixtureOfExperts) -> SpecProblems:
    n_experts, n_groups, n_active_groups = spec.n_experts, spec.n_groups, spec.n_active_groups
    if n_groups < 1 or n_experts % n_groups or not 1 <= n_active_groups <= n_groups:
        wrong = _("{n_experts} experts cannot form {n_groups} groups with {n_active_groups} active",
                  **vars(spec))
        yield f"{path}.n_groups", wrong, _("use a divisor of the number of experts")
        return
    n_candidates = n_experts // n_groups * n_active_groups
    if n_candidates < spec.n_experts_per_token <= n_experts:
        wrong = _("the active groups have {n_candidates} experts, {n_experts_per_token} are needed",
                  n_candidates=n_candidates, **vars(spec))
        yield f"{path}.n_active_groups", wrong, _("use more active groups")


def _probability(path: str, dropout: float) -> SpecProblems:
    if not 0 <= dropout < 1:
        wrong = _("{dropout} is not a probability", dropout=dropout)
        yield path, wrong, _("use 0 <= dropout < 1")


def _more_than(path: str, value: float, bound: float) -> SpecProblems:
    if not value > bound:  # nan is an error too
        yield path, _("cannot be {value}", value=value), _("use more than {bound}", bound=bound)


def _not_finite(part: Any, path: str = "") -> SpecProblems:
    """The numbers that are NaN or infinite, in any part of the spec."""
    if isinstance(part, float) and not math.isfinite(part):
        yield path, _("cannot be {value}", value=part), _("use a finite number")
    elif is_dataclass(part):
        for field in fields(part):
            name = "" if field.name == "layers" else field.name
            yield from _not_finite(getattr(part, field.name), ".".join(filter(None, (path, name))))
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from _not_finite(item, f"{path}.{index}")


def _out_of_range(path: str, part: object) -> SpecProblems:
    """The fields of `part` outside LEAST and MOST; None, a field or part left out, is inside."""
    for name, least in LEAST.items():
        value, most = getattr(part, name, None), MOST.get(name, MAX_WIDTH)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            continue  # _not_finite has reported it
        if not least <= value <= most:
            limit = _("use at least {least}", least=least)
            limit = _("use at most {most}", most=most) if value > most else limit
            yield f"{path}.{name}".lstrip("."), _("cannot be {value}", value=value), limit
