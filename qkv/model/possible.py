"""What cannot be: values that fit their types and yet make no model.

In: a Spec. Out: each impossible value as (path, what is wrong, what would be right).
Told in docs/model.md, "What can be wrong".
"""

from collections.abc import Iterator

from qkv.language import say
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
        wrong = say(f"{spec.dropout} is no share", f"{spec.dropout} 不是比例")
        yield "dropout", wrong, say("use 0 <= dropout < 1", "应在 0 与 1 之间")
    if isinstance(spec.positions, s.Sinusoidal) and spec.d_model % 2:
        wrong = say(f"{spec.d_model} is odd; sines and cosines come in pairs", f"{spec.d_model} 是奇数；正弦余弦成对")
        yield "d_model", wrong, say(f"use {spec.d_model + 1}", f"请用 {spec.d_model + 1}")
    if spec.source_vocab_size is not None and (spec.encoder is None or spec.decoder is None):
        wrong = say("only an encoder-decoder has a source", "只有编码器-解码器才有源语言")
        yield "source_vocab_size", wrong, say("use null", "请用 null")


def _positions(positions: s.Positions) -> Iterator[Problem]:
    if isinstance(positions, s.Learned):
        yield from _at_least("positions.first", positions.first, 0)
    if not isinstance(positions, s.Rotary):
        return
    if not 0 < positions.share <= 1:
        wrong = say(f"{positions.share} is no share", f"{positions.share} 不是比例")
        yield "positions.share", wrong, say("use 0 < share <= 1", "应大于 0，不超过 1")
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
        right = say("give an encoder, a decoder or both", "请给出 encoder 或 decoder")
        yield "", say("there is no stack", "没有任何层栈"), right
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        if stack is not None:
            yield from _turned_widths(name, stack, spec)
            for index, layer in enumerate(stack.layers):
                yield from _layer(f"{name}.{index}", layer, spec, needs_cross=name == "decoder" and bool(spec.encoder))


def _turned_widths(name: str, stack: s.Stack, spec: s.Spec) -> Iterator[Problem]:
    if not stack.layers:
        yield f"{name}.layers", say("is empty", "为空"), say("give at least one layer", "至少给一层")
    widths = sorted({width for layer in stack.layers if (width := turned_width(layer.mixer, spec.positions))})
    if len(widths) > 1:
        wrong = say(f"heads of different turned widths {widths}", f"旋转宽度不一 {widths}")
        yield f"{name}.layers", wrong, say("use one width in a stack", "同一栈内请用同一宽度")


def _layer(path: str, layer: s.Layer, spec: s.Spec, needs_cross: bool) -> Iterator[Problem]:
    yield from _at_least(f"{path}.repeat", layer.repeat, 1)
    yield from _mixer(f"{path}.mixer", layer.mixer, spec)
    yield from _feed_forward(f"{path}.feed_forward", layer.feed_forward)
    yield from _at_least(f"{path}.norm.eps", layer.norm.eps, 0)
    if layer.cross is not None and not needs_cross:
        yield f"{path}.cross", say("there is no encoder to look at", "没有可看的编码器"), say("use null", "请用 null")
    elif layer.cross is not None:
        yield from _cross(f"{path}.cross", layer.cross)
    elif needs_cross:
        wrong = say("is missing, and there is an encoder", "缺少，而存在编码器")
        yield f"{path}.cross", wrong, say("give heads to look at its memory", "请给出看编码器的注意力头")


def _cross(path: str, heads: s.Heads) -> Iterator[Problem]:
    yield from _heads(path, heads)
    if heads.window is not None:
        wrong = say("two sentences have no common places, so no window", "两个句子没有共同的位置，也就没有窗口")
        yield f"{path}.window", wrong, say("use null", "请用 null")


def _mixer(path: str, mixer: s.Mixer, spec: s.Spec) -> Iterator[Problem]:
    match mixer:
        case s.Heads(): yield from _heads(path, mixer)
        case s.Latent(): yield from _latent(path, mixer, spec)
        case s.Recurrent() if spec.d_model % 2:
            wrong = say("two directions cannot share an odd width", "两个方向无法平分奇数宽度")
            yield "d_model", wrong, say("use an even one", "请用偶数")
        case s.Convolution() | s.Pooling(): yield from _at_least(f"{path}.width", mixer.width, 1)
    width = turned_width(mixer, spec.positions)
    all_lost = width == 0 and isinstance(spec.positions, s.Rotary) and isinstance(mixer, s.Heads)
    if width % 2 or all_lost:
        wrong = say(f"{width} turned dimensions do not pair up", f"{width} 个旋转维度无法成对")
        yield path, wrong, say("use an even number, at least 2", "请用偶数，至少为 2")


def _heads(path: str, heads: s.Heads) -> Iterator[Problem]:
    for name in ("n_heads", "n_kv_heads", "d_head"):
        yield from _at_least(f"{path}.{name}", getattr(heads, name), 1)
    if heads.window is not None:
        yield from _at_least(f"{path}.window", heads.window, 1)
    if heads.n_heads > 0 and heads.n_kv_heads > 0 and heads.n_heads % heads.n_kv_heads:
        good = [str(n) for n in range(1, heads.n_heads + 1) if heads.n_heads % n == 0]
        wrong = say(
            f"{heads.n_heads} query heads cannot share {heads.n_kv_heads} key/value heads",
            f"{heads.n_heads} 个查询头无法共用 {heads.n_kv_heads} 个键值头",
        )
        yield path, wrong, say(f"use {', '.join(good[:-1])} or {good[-1]}", f"请用 {'、'.join(good)}")


def _latent(path: str, latent: s.Latent, spec: s.Spec) -> Iterator[Problem]:
    for name in ("n_heads", "kv_rank", "d_nope", "d_rope", "d_value"):
        yield from _at_least(f"{path}.{name}", getattr(latent, name), 1)
    if latent.q_rank is not None:
        yield from _at_least(f"{path}.q_rank", latent.q_rank, 1)
    if not isinstance(spec.positions, s.Rotary):
        wrong = say("latent attention needs rotary positions", "潜注意力需要旋转位置")
        yield path, wrong, say('use {"kind": "rotary"}', '请用 {"kind": "rotary"}')


def _feed_forward(path: str, part: s.FeedForward) -> Iterator[Problem]:
    if not isinstance(part, s.Experts):
        yield from _at_least(f"{path}.d_ff", part.d_ff, 1)
        return
    yield from _at_least(f"{path}.n_experts", part.n_experts, 1)
    yield from _at_least(f"{path}.each.d_ff", part.each.d_ff, 1)
    if part.each.bias:
        yield f"{path}.each.bias", say("routed experts have no biases", "被路由的专家没有偏置"), say("use false", "请用 false")
    if part.shared is not None:
        yield from _at_least(f"{path}.shared.d_ff", part.shared.d_ff, 1)
    if not 1 <= part.n_active <= part.n_experts:
        wrong = say(f"{part.n_active} of {part.n_experts} experts", f"{part.n_experts} 个专家中的 {part.n_active} 个")
        yield f"{path}.n_active", wrong, say(f"use 1 to {part.n_experts}", f"请用 1 到 {part.n_experts}")
    if part.n_groups < 1 or part.n_experts % part.n_groups or not 1 <= part.n_active_groups <= part.n_groups:
        wrong = say(
            f"{part.n_experts} experts do not fall into {part.n_groups} groups with {part.n_active_groups} active",
            f"{part.n_experts} 个专家无法分成 {part.n_groups} 组并启用 {part.n_active_groups} 组",
        )
        yield f"{path}.n_groups", wrong, say("use a divisor of the experts", "请用专家数的约数")
    elif (within := part.n_experts // part.n_groups * part.n_active_groups) < part.n_active <= part.n_experts:
        wrong = say(
            f"{part.n_active} active experts do not fit into groups that hold {within}",
            f"启用的组共有 {within} 个专家，容不下 {part.n_active} 个",
        )
        yield f"{path}.n_active_groups", wrong, say("use more active groups", "请启用更多的组")


def _more_than(path: str, value: float, bound: float) -> Iterator[Problem]:
    if not value > bound:  # so that nan is refused too
        yield path, say(f"cannot be {value}", f"不能是 {value}"), say(f"use more than {bound}", f"应大于 {bound}")


def _at_least(path: str, value: float, least: int) -> Iterator[Problem]:
    if not value >= least:
        yield path, say(f"cannot be {value}", f"不能是 {value}"), say(f"use at least {least}", f"至少为 {least}")
