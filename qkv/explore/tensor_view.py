"""Tensor views: name, module path, shape and axes of every tensor in a trace.

They follow from the spec and the lengths; tensor_values.py computes the values.
See docs/explore.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from qkv.model import spec as s


@dataclass(frozen=True)
class TensorView:
    """A tensor of a step.

    `path` is the module whose output it is, "<path" the module whose input it is, and "=name" a
    derived tensor; `item` is the index into a tuple output.
    """

    name: str
    caption: str
    path: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict)
    scale: str = "signed"
    item: int | None = None

    def as_json(self) -> dict[str, Any]:
        recorded = None if self.path.startswith(("<", "=")) or self.item is not None else self.path
        return {
            "name": self.name,
            "caption": self.caption,
            "shape": list(self.shape),
            "axes": list(self.axes),
            "labels": self.labels,
            "scale": self.scale,
            "path": recorded,
        }


@dataclass(frozen=True)
class Step:
    """One step of a pass."""

    key: str
    kind: str
    stack: str | None
    layer: int | None
    part: str
    tensors: tuple[TensorView, ...] = ()


@dataclass(frozen=True)
class Sublayer:
    """A sublayer, with the side and length of its queries (rows) and keys (columns)."""

    stack: str
    layer: int
    part: str
    rows: tuple[str, int]  # side, length
    columns: tuple[str, int]
    d_model: int

    @property
    def path(self) -> str:
        return f"{self.stack}.layers.{self.layer}.{self.part}"

    def step(self, kind: str, *tensors: TensorView) -> Step:
        key = f"{self.stack}.{self.layer}.{self.part}.{kind}"
        return Step(key, kind, self.stack, self.layer, self.part, tensors)

    def per_token(
        self, kind: str, path: str, width: int, axis: str, keys: bool = False, caption: str = ""
    ) -> TensorView:
        """(token, width)."""
        side, length = self.columns if keys else self.rows
        name = f"{self.stack}.{self.layer}.{self.part}.{kind}"
        full = path.replace("@", self.path)
        return TensorView(
            name,
            caption or kind.rpartition(".")[2],
            full,
            (length, width),
            ("token", axis),
            {"token": side},
        )

    def per_pair(self, kind: str, n_heads: int, scale: str) -> TensorView:
        """(head, query, key)."""
        name = {"mask": "masked", "softmax": "weights"}.get(kind, kind)
        return TensorView(
            f"{self.stack}.{self.layer}.{self.part}.{kind}",
            kind,
            f"{self.path}.branch.core.{name}",
            (n_heads, self.rows[1], self.columns[1]),
            ("head", "query", "key"),
            {"query": self.rows[0], "key": self.columns[0]},
            scale,
        )

    def per_head(
        self, kind: str, path: str, n_heads: int, width: int, keys: bool = False
    ) -> TensorView:
        """(head, token, d_head)."""
        side, length = self.columns if keys else self.rows
        return TensorView(
            f"{self.stack}.{self.layer}.{self.part}.{kind}",
            kind.rpartition(".")[2],
            path.replace("@", self.path),
            (n_heads, length, width),
            ("head", "token", "d_head"),
            {"token": side},
        )


def sublayer_steps(sublayer: Sublayer, branch: list[Step], norm: s.Norm) -> list[Step]:
    """The steps of a branch with its residual and norm, in the order of pre-norm or post-norm."""
    d = sublayer.d_model
    if norm.placement == "pre":
        first = sublayer.step("norm", sublayer.per_token("norm", "@.norm", d, "d_model"))
        return [
            first,
            *branch,
            sublayer.step("residual", sublayer.per_token("residual", "@", d, "d_model")),
        ]
    last = [
        sublayer.step("residual", sublayer.per_token("residual", "<@.norm", d, "d_model")),
        sublayer.step("norm", sublayer.per_token("norm", "@.norm", d, "d_model")),
    ]
    return [*branch, *last]


def attention_steps(sublayer: Sublayer, mixer: s.Mixer, rotary: bool) -> list[Step]:
    """From queries, keys, values to the output projection; other mixers are one step."""
    match mixer:
        case s.Attention():
            return [
                *heads_steps(sublayer, mixer, rotary),
                *core_steps(sublayer, mixer.n_heads, mixer.d_head),
            ]
        case s.LatentAttention():
            return [
                *latent_steps(sublayer, mixer),
                *core_steps(sublayer, mixer.n_heads, mixer.v_head_dim),
            ]
    return [
        sublayer.step("mixer", sublayer.per_token("mixer", "@.branch", sublayer.d_model, "d_model"))
    ]


def heads_steps(sublayer: Sublayer, heads: s.Attention, rotary: bool) -> Iterator[Step]:
    n, kv, d = heads.n_heads, heads.n_kv_heads, heads.d_head
    yield sublayer.step("q", sublayer.per_token("q", "@.branch.q_proj", n * d, "heads*d_head"))
    yield sublayer.step(
        "k", sublayer.per_token("k", "@.branch.k_proj", kv * d, "heads*d_head", keys=True)
    )
    yield sublayer.step(
        "v", sublayer.per_token("v", "@.branch.v_proj", kv * d, "heads*d_head", keys=True)
    )
    yield sublayer.step(
        "split",
        sublayer.per_head("split.q", "<@.branch.q_norm", n, d),
        sublayer.per_head("split.k", "<@.branch.k_norm", kv, d, keys=True),
        sublayer.per_head("split.v", "@.branch.core.v", n, d, keys=True),
    )
    if heads.qk_norm:
        yield sublayer.step(
            "qk_norm",
            sublayer.per_head("qk_norm.q", "@.branch.q_norm", n, d),
            sublayer.per_head("qk_norm.k", "@.branch.k_norm", kv, d, keys=True),
        )
    if rotary:
        yield sublayer.step(
            "rotation",
            sublayer.per_head("rotation.q", "@.branch.core.q", n, d),
            sublayer.per_head("rotation.k", "@.branch.core.k", n, d, keys=True),
        )


def latent_steps(sublayer: Sublayer, latent: s.LatentAttention) -> Iterator[Step]:
    n, width = latent.n_heads, latent.qk_nope_head_dim + latent.qk_rope_head_dim
    yield sublayer.step("q", sublayer.per_token("q", "@.branch.q_proj", n * width, "heads*d_head"))
    yield sublayer.step(
        "latent",
        sublayer.per_token("latent.c", "@.branch.kv_norm", latent.kv_lora_rank, "rank"),
        sublayer.per_token(
            "latent.down", "@.branch.kv_down", latent.kv_lora_rank + latent.qk_rope_head_dim, "rank"
        ),
    )
    yield sublayer.step(
        "up_projection",
        sublayer.per_token(
            "up_projection",
            "@.branch.kv_up",
            n * (latent.qk_nope_head_dim + latent.v_head_dim),
            "heads*d_head",
        ),
    )
    yield sublayer.step(
        "rotation",
        sublayer.per_head("rotation.q", "@.branch.core.q", n, width),
        sublayer.per_head("rotation.k", "@.branch.core.k", n, width),
        sublayer.per_head("rotation.v", "@.branch.core.v", n, latent.v_head_dim),
    )


def core_steps(sublayer: Sublayer, n_heads: int, width: int) -> Iterator[Step]:
    yield sublayer.step("scores", sublayer.per_pair("scores", n_heads, "signed"))
    yield sublayer.step("mask", sublayer.per_pair("mask", n_heads, "signed"))
    yield sublayer.step("softmax", sublayer.per_pair("softmax", n_heads, "probability"))
    yield sublayer.step("mixed", sublayer.per_head("mixed", "@.branch.core.mixed", n_heads, width))
    yield sublayer.step(
        "joined", sublayer.per_token("joined", "<@.branch.o_proj", n_heads * width, "heads*d_head")
    )
    yield sublayer.step(
        "output", sublayer.per_token("output", "@.branch", sublayer.d_model, "d_model")
    )


def feed_forward_steps(sublayer: Sublayer, spec: s.FeedForward) -> Iterator[Step]:
    if isinstance(spec, s.MixtureOfExperts):
        yield from expert_steps(sublayer, spec)
        return
    if isinstance(spec, s.Gated):
        yield sublayer.step(
            "gate", sublayer.per_token("gate", "@.branch.gate_proj", spec.d_ff, "d_ff")
        )
    yield sublayer.step("up", sublayer.per_token("up", "@.branch.up_proj", spec.d_ff, "d_ff"))
    yield sublayer.step(
        "activation", sublayer.per_token("activation", "<@.branch.down_proj", spec.d_ff, "d_ff")
    )
    yield sublayer.step("down", sublayer.per_token("down", "@.branch", sublayer.d_model, "d_model"))


def expert_steps(sublayer: Sublayer, experts: s.MixtureOfExperts) -> Iterator[Step]:
    side, length = sublayer.rows
    prefix, path = (
        f"{sublayer.stack}.{sublayer.layer}.{sublayer.part}.router",
        f"{sublayer.path}.branch.router",
    )

    def router_output(name: str, width: int, axis: str, scale: str, item: int) -> TensorView:
        return TensorView(
            f"{prefix}.{name}",
            name,
            path,
            (length, width),
            ("token", axis),
            {"token": side},
            scale,
            item,
        )

    yield sublayer.step(
        "router",
        router_output("scores", experts.n_experts, "expert", "probability", 2),
        router_output("chosen", experts.n_experts_per_token, "choice", "index", 0),
        router_output("weights", experts.n_experts_per_token, "choice", "probability", 1),
    )
    if experts.shared_expert is not None:
        yield sublayer.step(
            "shared", sublayer.per_token("shared", "@.branch.shared", sublayer.d_model, "d_model")
        )
    yield sublayer.step(
        "experts", sublayer.per_token("experts", "@.branch", sublayer.d_model, "d_model")
    )
