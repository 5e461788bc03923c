"""A tensor of the story: what it is called, where it comes from, what its axes mean.

In: the choices of a layer and the lengths of a pass. Out: for each step of the layer its tensors, with shape and axes,
before anything is computed; numbers.py fetches them. Told in docs/explore.md, "The walk".
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from qkv.model import spec as s


@dataclass(frozen=True)
class Shown:
    """`path` is the module that gives it; "<path" what the module is given; `item` one of several it gives."""

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
    """One step of the walk."""

    key: str
    kind: str
    stack: str | None
    layer: int | None
    part: str
    tensors: tuple[Shown, ...] = ()


@dataclass(frozen=True)
class Place:
    """A sublayer: which stack, layer and part; who asks (rows) and who is asked (columns), with their lengths."""

    stack: str
    layer: int
    part: str
    rows: tuple[str, int]  # side, length
    columns: tuple[str, int]
    d_model: int

    @property
    def path(self) -> str:
        return f"{self.stack}.layers.{self.layer}.{self.part}"

    def step(self, kind: str, *tensors: Shown) -> Step:
        key = f"{self.stack}.{self.layer}.{self.part}.{kind}"
        return Step(key, kind, self.stack, self.layer, self.part, tensors)

    def flat(
        self, kind: str, path: str, width: int, axis: str, keys: bool = False, caption: str = ""
    ) -> Shown:
        """(token, width): one row a token."""
        side, length = self.columns if keys else self.rows
        name = f"{self.stack}.{self.layer}.{self.part}.{kind}"
        full = path.replace("@", self.path)
        return Shown(
            name,
            caption or kind.rpartition(".")[2],
            full,
            (length, width),
            ("token", axis),
            {"token": side},
        )

    def square(self, kind: str, n_heads: int, scale: str) -> Shown:
        """(head, query, key)."""
        inside = {"mask": "masked", "softmax": "weights"}.get(kind, kind)
        return Shown(
            f"{self.stack}.{self.layer}.{self.part}.{kind}",
            kind,
            f"{self.path}.branch.core.{inside}",
            (n_heads, self.rows[1], self.columns[1]),
            ("head", "query", "key"),
            {"query": self.rows[0], "key": self.columns[0]},
            scale,
        )

    def heads(self, kind: str, path: str, n_heads: int, width: int, keys: bool = False) -> Shown:
        """(head, token, d_head)."""
        side, length = self.columns if keys else self.rows
        return Shown(
            f"{self.stack}.{self.layer}.{self.part}.{kind}",
            kind.rpartition(".")[2],
            path.replace("@", self.path),
            (n_heads, length, width),
            ("head", "token", "d_head"),
            {"token": side},
        )


def sublayer_steps(place: Place, inside: list[Step], norm: s.Norm) -> list[Step]:
    """A branch with its residual and its norm, in the order in which this model has them."""
    d = place.d_model
    if norm.place == "pre":
        first = place.step("norm", place.flat("norm", "@.norm", d, "d_model"))
        return [first, *inside, place.step("residual", place.flat("residual", "@", d, "d_model"))]
    last = [
        place.step("residual", place.flat("residual", "<@.norm", d, "d_model")),
        place.step("norm", place.flat("norm", "@.norm", d, "d_model")),
    ]
    return [*inside, *last]


def attention_steps(place: Place, mixer: s.Mixer, turned: bool) -> list[Step]:
    """From queries, keys and values to the output map; a mixer that is no attention is one step."""
    match mixer:
        case s.Heads():
            return [
                *heads_steps(place, mixer, turned),
                *core_steps(place, mixer.n_heads, mixer.d_head),
            ]
        case s.Latent():
            return [*latent_steps(place, mixer), *core_steps(place, mixer.n_heads, mixer.d_value)]
    return [place.step("mixer", place.flat("mixer", "@.branch", place.d_model, "d_model"))]


def heads_steps(place: Place, heads: s.Heads, turned: bool) -> Iterator[Step]:
    n, kv, d = heads.n_heads, heads.n_kv_heads, heads.d_head
    yield place.step("q", place.flat("q", "@.branch.q_proj", n * d, "heads*d_head"))
    yield place.step("k", place.flat("k", "@.branch.k_proj", kv * d, "heads*d_head", keys=True))
    yield place.step("v", place.flat("v", "@.branch.v_proj", kv * d, "heads*d_head", keys=True))
    yield place.step(
        "split",
        place.heads("split.q", "<@.branch.q_norm", n, d),
        place.heads("split.k", "<@.branch.k_norm", kv, d, keys=True),
        place.heads("split.v", "@.branch.core.v", n, d, keys=True),
    )
    if heads.qk_norm:
        yield place.step(
            "qk_norm",
            place.heads("qk_norm.q", "@.branch.q_norm", n, d),
            place.heads("qk_norm.k", "@.branch.k_norm", kv, d, keys=True),
        )
    if turned:
        yield place.step(
            "rotation",
            place.heads("rotation.q", "@.branch.core.q", n, d),
            place.heads("rotation.k", "@.branch.core.k", n, d, keys=True),
        )


def latent_steps(place: Place, latent: s.Latent) -> Iterator[Step]:
    n, width = latent.n_heads, latent.d_nope + latent.d_rope
    yield place.step("q", place.flat("q", "@.branch.q_proj", n * width, "heads*d_head"))
    yield place.step(
        "latent",
        place.flat("latent.c", "@.branch.kv_norm", latent.kv_rank, "rank"),
        place.flat("latent.down", "@.branch.kv_down", latent.kv_rank + latent.d_rope, "rank"),
    )
    yield place.step(
        "unfold",
        place.flat(
            "unfold", "@.branch.kv_up", n * (latent.d_nope + latent.d_value), "heads*d_head"
        ),
    )
    yield place.step(
        "rotation",
        place.heads("rotation.q", "@.branch.core.q", n, width),
        place.heads("rotation.k", "@.branch.core.k", n, width),
        place.heads("rotation.v", "@.branch.core.v", n, latent.d_value),
    )


def core_steps(place: Place, n_heads: int, width: int) -> Iterator[Step]:
    yield place.step("scores", place.square("scores", n_heads, "signed"))
    yield place.step("mask", place.square("mask", n_heads, "signed"))
    yield place.step("softmax", place.square("softmax", n_heads, "share"))
    yield place.step("mixed", place.heads("mixed", "@.branch.core.mixed", n_heads, width))
    yield place.step(
        "joined", place.flat("joined", "<@.branch.o_proj", n_heads * width, "heads*d_head")
    )
    yield place.step("output", place.flat("output", "@.branch", place.d_model, "d_model"))


def feed_forward_steps(place: Place, part: s.FeedForward) -> Iterator[Step]:
    if isinstance(part, s.Experts):
        yield from expert_steps(place, part)
        return
    if isinstance(part, s.Gated):
        yield place.step("gate", place.flat("gate", "@.branch.gate_proj", part.d_ff, "d_ff"))
    yield place.step("up", place.flat("up", "@.branch.up_proj", part.d_ff, "d_ff"))
    yield place.step(
        "activation", place.flat("activation", "<@.branch.down_proj", part.d_ff, "d_ff")
    )
    yield place.step("down", place.flat("down", "@.branch", place.d_model, "d_model"))


def expert_steps(place: Place, experts: s.Experts) -> Iterator[Step]:
    side, length = place.rows
    name, path = f"{place.stack}.{place.layer}.{place.part}.router", f"{place.path}.branch.router"

    def said(what: str, width: int, axis: str, scale: str, item: int) -> Shown:
        return Shown(
            f"{name}.{what}",
            what,
            path,
            (length, width),
            ("token", axis),
            {"token": side},
            scale,
            item,
        )

    yield place.step(
        "router",
        said("scores", experts.n_experts, "expert", "share", 2),
        said("chosen", experts.n_active, "choice", "index", 0),
        said("weights", experts.n_active, "choice", "share", 1),
    )
    if experts.shared is not None:
        yield place.step(
            "shared", place.flat("shared", "@.branch.shared", place.d_model, "d_model")
        )
    yield place.step("experts", place.flat("experts", "@.branch", place.d_model, "d_model"))
