"""Tensor views: name (the module path), shape and axes of every tensor in a trace.

They follow from the spec and the lengths; tensor_values.py computes the values.
See docs/guides/inspect.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from qkv.explore.serialize import JsonObject
from qkv.model import spec as s

# Tensors that are not the output of one module; all others have the name of their module.
NOT_RECORDED = ("ids", "embedding", "scaled", "type", "pooling", "sentence")


@dataclass(frozen=True)
class TensorView:
    """A tensor of a step.

    `path` is the module whose output it is, "path.input" if it is the input of the module, and
    "=name" a tensor that is not inside a layer; `item` is the index into a tuple output.
    """

    caption: str
    path: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    scale: str = "signed"
    item: int | None = None

    @property
    def name(self) -> str:
        """The name under which `record` records it, where a module has it as output or input."""
        return self.path.lstrip("=") if self.item is None else f"{self.path}.{self.caption}"

    @property
    def is_recorded(self) -> bool:
        return self.item is None and self.name.rpartition(".")[2] not in NOT_RECORDED

    def as_json(self) -> JsonObject:
        return {
            "name": self.name,
            "caption": self.caption,
            "shape": list(self.shape),
            "axes": list(self.axes),
            "labels": self.labels,
            "scale": self.scale,
            "path": self.name if self.is_recorded else None,
        }


@dataclass(frozen=True)
class Step:
    """One step of a pass."""

    kind: str
    stack: str | None
    layer: int | None
    part: str
    tensors: tuple[TensorView, ...] = ()

    @property
    def key(self) -> str:
        """The name of its first tensor."""
        named = [tensor.name for tensor in self.tensors]
        return (named or [".".join(filter(None, (self.stack, self.kind)))])[0]


@dataclass(frozen=True)
class Sublayer:
    """A sublayer, with the side and length of its queries (rows) and keys (columns)."""

    stack: str
    layer: int
    norm: s.Norm
    d_model: int
    rows: tuple[str, int]  # side, length
    residual: bool
    part: str
    columns: tuple[str, int]

    def step(self, kind: str, *tensors: TensorView) -> Step:
        return Step(kind, self.stack, self.layer, self.part, tensors)

    def per_token(
        self, caption: str, path: str, width: int, axis: str = "heads*d_head"
    ) -> TensorView:
        """(token, width); "@" in `path` is the module path of this sublayer.

        The tokens of "k" and "v" are the keys, those of other tensors the queries.
        """
        side, length = self.columns if caption in ("k", "v") else self.rows
        path = path.replace("@", f"{self.stack}.layers.{self.layer}.{self.part}")
        return TensorView(caption, path, (length, width), ("token", axis), {"token": side})

    def per_head(self, caption: str, path: str, n_heads: int, width: int) -> TensorView:
        """(head, token, d_head)."""
        view = self.per_token(caption, path, width, "d_head")
        return replace(view, shape=(n_heads, *view.shape), axes=("head", *view.axes))

    def pair_step(self, kind: str, output: str, n_heads: int, scale: str = "signed") -> Step:
        """A step with one tensor, (head, query, key)."""
        (query, _), (key, n_keys) = self.rows, self.columns
        view = self.per_head(kind, f"@.branch.core.{output}", n_heads, n_keys)
        axes, labels = ("head", "query", "key"), {"query": query, "key": key}
        return self.step(kind, replace(view, axes=axes, labels=labels, scale=scale))

    def token_step(self, kind: str, path: str, width: int, axis: str = "heads*d_head") -> Step:
        """A step with one tensor, (token, width)."""
        return self.step(kind, self.per_token(kind, path, width, axis))

    def stream_step(self, kind: str, path: str) -> Step:
        """A step with one tensor, (token, d_model)."""
        return self.token_step(kind, path, self.d_model, "d_model")

    def with_residual(self, branch: Iterable[Step]) -> list[Step]:
        """The steps of a branch, its residual and norm, in the order of pre-norm or post-norm."""
        norm = self.stream_step("norm", "@.norm")
        if not self.residual:
            return [norm, *branch] if self.norm.placement == "pre" else [*branch, norm]
        if self.norm.placement == "pre":
            return [norm, *branch, self.stream_step("residual", "@")]
        return [*branch, self.stream_step("residual", "@.norm.input"), norm]


def attention_steps(sublayer: Sublayer, mixer: s.Mixer, positions: str) -> Iterator[Step]:
    """From queries, keys, values to the output projection; other mixers are one step.

    `positions` is the kind of position encoding, "none" for cross-attention.
    """
    match mixer:
        case s.Attention():
            yield from heads_steps(sublayer, mixer, positions == "rotary")
            yield from core_steps(sublayer, mixer.n_heads, mixer.d_head, positions == "alibi")
        case s.LatentAttention():
            yield from latent_steps(sublayer, mixer)
            yield from core_steps(sublayer, mixer.n_heads, mixer.v_head_dim)
        case _:
            yield sublayer.stream_step("mixer", "@.branch")


def heads_steps(sublayer: Sublayer, heads: s.Attention, rotary: bool) -> Iterator[Step]:
    n, kv, d = heads.n_heads, heads.n_kv_heads, heads.d_head
    per_head = sublayer.per_head
    for kind, n_heads in (("q", n), ("k", kv), ("v", kv)):
        yield sublayer.token_step(kind, f"@.branch.{kind}_proj", n_heads * d)
    yield sublayer.step(
        "split",
        per_head("q", "@.branch.q_norm.input", n, d),
        per_head("k", "@.branch.k_norm.input", kv, d),
        per_head("v", "@.branch.core.v", n, d),
    )
    if heads.qk_norm:
        yield sublayer.step(
            "qk_norm",
            per_head("q", "@.branch.q_norm", n, d),
            per_head("k", "@.branch.k_norm", kv, d),
        )
    if rotary:
        yield sublayer.step(
            "rotation",
            per_head("q", "@.branch.core.q", n, d),
            per_head("k", "@.branch.core.k", n, d),
        )


def latent_steps(sublayer: Sublayer, latent: s.LatentAttention) -> Iterator[Step]:
    n, rank, d_value = latent.n_heads, latent.kv_lora_rank, latent.v_head_dim
    nope, rope = latent.qk_nope_head_dim, latent.qk_rope_head_dim
    yield sublayer.token_step("q", "@.branch.q_proj", n * (nope + rope))
    yield sublayer.step(
        "latent",
        sublayer.per_token("c", "@.branch.kv_norm", rank, "rank"),
        sublayer.per_token("down", "@.branch.kv_down", rank + rope, "rank"),
    )
    yield sublayer.token_step("up_projection", "@.branch.kv_up", n * (nope + d_value))
    yield sublayer.step(
        "rotation",
        sublayer.per_head("q", "@.branch.core.q", n, nope + rope),
        sublayer.per_head("k", "@.branch.core.k", n, nope + rope),
        sublayer.per_head("v", "@.branch.core.v", n, d_value),
    )


def core_steps(sublayer: Sublayer, n_heads: int, width: int, alibi: bool = False) -> Iterator[Step]:
    yield sublayer.pair_step("scores", "scores", n_heads)
    if alibi:
        yield sublayer.pair_step("alibi", "biased", n_heads)
    yield sublayer.pair_step("mask", "masked", n_heads)
    yield sublayer.pair_step("softmax", "weights", n_heads, "probability")
    yield sublayer.step("mixed", sublayer.per_head("mixed", "@.branch.core.mixed", n_heads, width))
    yield sublayer.token_step("joined", "@.branch.o_proj.input", n_heads * width)
    yield sublayer.stream_step("output", "@.branch")


def feed_forward_steps(sublayer: Sublayer, spec: s.FeedForward) -> Iterator[Step]:
    assert not isinstance(spec, s.Custom)  # ExploredModel refuses it
    if isinstance(spec, s.MixtureOfExperts):
        yield from expert_steps(sublayer, spec)
        return
    if isinstance(spec, s.Gated):
        yield sublayer.token_step("gate", "@.branch.gate_proj", spec.d_ff, "d_ff")
    yield sublayer.token_step("up", "@.branch.up_proj", spec.d_ff, "d_ff")
    yield sublayer.token_step("activation", "@.branch.down_proj.input", spec.d_ff, "d_ff")
    yield sublayer.stream_step("down", "@.branch")


def expert_steps(sublayer: Sublayer, experts: s.MixtureOfExperts) -> Iterator[Step]:
    def router_output(name: str, width: int, axis: str, scale: str, item: int) -> TensorView:
        view = sublayer.per_token(name, "@.branch.router", width, axis)
        return replace(view, scale=scale, item=item)

    yield sublayer.step(
        "router",
        router_output("scores", experts.n_experts, "expert", "probability", 2),
        router_output("chosen", experts.n_experts_per_token, "choice", "index", 0),
        router_output("weights", experts.n_experts_per_token, "choice", "probability", 1),
    )
    if experts.shared_expert is not None:
        yield sublayer.stream_step("shared", "@.branch.shared")
    yield sublayer.stream_step("experts", "@.branch")
