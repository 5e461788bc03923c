"""Summary of every tensor of a trace: name, shape, statistics, and the values of small tensors.

See docs/guides/inspect.md, "Step-by-step trace".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.errors import QkvError, near_miss
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.explore.tensor_values import full_tensor
from qkv.explore.tensor_view import Step, TensorView
from qkv.explore.trace import ATTENTION, all_steps, attention_layers, sides_with_predictions
from qkv.messages import _

__all__ = ["summarize"]

MAX_VALUES = 16  # a larger tensor is summarized by its statistics
MAX_VALUES_OF_HEAD = 144  # once a head is selected
STATISTICS = ("mean", "std", "min", "max")


@dataclass(frozen=True)
class TensorSummary:
    """A tensor of a step; the statistics are those of its finite values.

    Attributes:
        step: The kind of step.
        name: The module path, under which `record` records it.
        shape: Its shape.
        axes: The name of each axis.
        mean, std, min, max: None without finite values.
        masked: The number of values that are not finite, such as masked scores.
        values: All values, None where not finite; None if they are many.
        labels: The tokens of the first of two axes, if it is one of tokens.
    """

    step: str
    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    masked: int
    values: Any
    labels: list[str] | None

    def as_json(self) -> JsonObject:
        fields = ("step", "name", "shape", "axes", *STATISTICS, "masked", "values")
        return {name: getattr(self, name) for name in fields}


def summarize(pass_: Pass, layer: int | None = None, head: int | None = None) -> JsonObject:
    """The tokens of each side, the summary of every tensor in order, and the next token."""
    check_layer(pass_, layer)
    check_head(pass_, layer, head)
    sides = sides_with_predictions(pass_)
    steps = [step for step in all_steps(pass_) if layer in (None, step.layer)]
    return {
        "text": pass_.text,
        "family": pass_.explored.family,
        "tokens": {side: found["tokens"] for side, found in sides.items()},
        "steps": [summary for step in steps for summary in summaries(pass_, step, head, sides)],
        "next": next_token(sides),
    }


def next_token(sides: JsonObject) -> JsonObject | None:
    """The most probable token after the last one, with its probability."""
    target = sides.get("target", {})
    if not target.get("predicted"):
        return None
    return {"token": target["predicted"][-1], "probability": target["predicted_p"][-1]}


def summaries(
    pass_: Pass, step: Step, head: int | None, sides: JsonObject
) -> Iterator[TensorSummary]:
    """The summary of every tensor of a step."""
    for view in step.tensors:
        tensor = pass_.logits() if view.name == "lm_head" else full_tensor(pass_, view)
        axes = view.axes
        if head is not None and axes[0] == "head":
            n_heads = heads_of_step(pass_, step)
            tensor, axes = tensor[head * len(tensor) // n_heads], axes[1:]  # or its key/value head
        side = sides.get(view.labels.get(axes[0], ""))
        labels = side["tokens"] if side and len(axes) == 2 else None
        yield summary_of(step.kind, view, tensor, axes, labels, head is not None)


def summary_of(
    kind: str,
    view: TensorView,
    tensor: Tensor,
    axes: tuple[str, ...],
    labels: list[str] | None,
    of_head: bool,
) -> TensorSummary:
    """Statistics in float64, and the values if they are few."""
    finite = tensor[tensor.isfinite()].double()
    mean = std = least = most = None
    if len(finite):
        numbers = (finite.mean(), finite.std(correction=0), finite.min(), finite.max())
        mean, std, least, most = map(float, numbers)
    few = tensor.numel() <= (MAX_VALUES_OF_HEAD if of_head else MAX_VALUES)
    return TensorSummary(
        kind,
        view.name,
        tuple(tensor.shape),
        axes,
        mean,
        std,
        least,
        most,
        tensor.numel() - len(finite),
        finite_values(tensor) if few else None,
        labels,
    )


def finite_values(tensor: Tensor) -> Any:
    """The values as nested lists; None in place of infinities."""
    if tensor.ndim:
        return [finite_values(row) for row in tensor]
    return tensor.item() if bool(torch.isfinite(tensor)) else None


# ---- selection


def heads_of_step(pass_: Pass, step: Step) -> int:
    """The number of heads of the layer that a step belongs to."""
    kind = next(
        name
        for name, kind in ATTENTION.items()
        if (kind.stack, kind.part) == (step.stack, step.part)
    )
    return attention_layers(pass_, kind)[step.layer or 0]


def check_layer(pass_: Pass, layer: int | None) -> None:
    """Raise if no stack has this layer."""
    known = {step.layer for step in all_steps(pass_) if step.layer is not None}
    if layer is not None and layer not in known:
        wrong = _("no layer {layer}", layer=layer)
        raise QkvError("--layer", wrong, near_miss(str(layer), map(str, sorted(known))))


def check_head(pass_: Pass, layer: int | None, head: int | None) -> None:
    """Raise if the selected layers do not all have this head."""
    if head is None:
        return
    counts = [
        n_heads
        for kind in ATTENTION
        for number, n_heads in attention_layers(pass_, kind).items()
        if layer in (None, number)
    ]
    if not counts:
        raise QkvError(pass_.explored.name, _("the model has no attention layers"))
    if not 0 <= head < min(counts):
        wrong, right = _("no head {head}", head=head), _("use 0 to {last}", last=min(counts) - 1)
        raise QkvError("--head", wrong, right)
