"""Attention as people look at it: heads, their mean, words in place of pieces, small pictures, and rollout.

In: a pass and which attention. Out: weights (heads, query, key), or what is made of them.
Told in docs/explore.md, "Attention".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.passes import Pass
from qkv.explore.problem import Problem
from qkv.explore.story import attention_of, sides_of

THUMB = 32  # a small picture is at most so many cells wide and high


def core_of(one: Pass, which: str, layer: int) -> str:
    """The path of the core whose weights are meant."""
    kinds = {kind["name"]: [each["layer"] for each in kind["layers"]] for kind in attention_of(one)}
    if layer not in kinds.get(which, []):
        raise Problem(
            404,
            "There is no attention '{which}' in layer {layer} of this model.",
            which=which[:20],
            layer=layer,
        )
    stack, part = ("decoder", "cross") if which == "cross" else (which, "attn")
    return f"{stack}.layers.{layer}.{part}.branch.core"


def weights(one: Pass, which: str, layer: int) -> Tensor:
    """Where each token looks, (heads, query, key)."""
    return one.weights(core_of(one, which, layer))


def chosen_head(grid: Tensor, head: str | None) -> Tensor:
    """All heads, one of them, or their mean."""
    if head is None:
        return grid
    if head == "mean":
        return grid.mean(dim=0)
    if not (head.isascii() and head.isdigit() and len(head) < 6 and int(head) < len(grid)):
        raise Problem(
            404,
            "There is no head '{head}': this layer has {n_grid}.",
            head=head[:20],
            n_grid=len(grid),
        )
    return grid[int(head)]


def word_weights(one: Pass, which: str, layer: int) -> Tensor:
    """The same for words, (heads, words, words): a word is looked at with all its pieces, and looks as their mean."""
    rows, columns = (
        ("target", "source")
        if which == "cross"
        else (("source",) * 2 if which == "encoder" else ("target",) * 2)
    )
    sides = sides_of(one)
    return merged(weights(one, which, layer), sides[rows]["words"], sides[columns]["words"])


def merged(grid: Tensor, rows: list[dict[str, Any]], columns: list[dict[str, Any]]) -> Tensor:
    """(heads, query, key) -> (heads, words, words): keys are summed, queries averaged."""
    queries = torch.stack(
        [grid[:, word["tokens"]].mean(dim=1) for word in rows], dim=1
    )  # (heads, words, key)
    return torch.stack(
        [queries[:, :, word["tokens"]].sum(dim=2) for word in columns], dim=2
    )  # (heads, words, words)


def thumbs(one: Pass, which: str, layer: int) -> Tensor:
    """Every head small, (heads, <= 32, <= 32), bytes from 0 to 255: the largest weight of each patch."""
    grid = weights(one, which, layer)
    size = [min(THUMB, length) for length in grid.shape[1:]]
    return (F.adaptive_max_pool2d(grid[None].float(), size)[0] * 255).round().to(torch.uint8)


def whole_mean(one: Pass, which: str) -> Tensor:
    """Where each token looks on the whole, (query, key): the mean over every head of every layer."""
    layers = next((kind["layers"] for kind in attention_of(one) if kind["name"] == which), None)
    if layers is None:
        raise Problem(404, "There is no attention '{which}' in this model.", which=which[:20])
    sums = [weights(one, which, each["layer"]).sum(dim=0) for each in layers]  # (query, key) each
    return torch.stack(sums).sum(dim=0) / sum(each["heads"] for each in layers)


def rollout(one: Pass, which: str) -> Tensor:
    """How much of each token at the bottom has come up to each token at the top, (query, key).

    Half of what a layer gives is what it was given (the residual): the product over layers of (mean of heads + I) / 2.
    """
    layers = next(
        (
            kind["layers"]
            for kind in attention_of(one)
            if kind["name"] == which and which != "cross"
        ),
        None,
    )
    if layers is None:
        raise Problem(404, "There is no rollout of '{which}'.", which=which[:20])
    through: Tensor | None = None
    for each in layers:
        mean = weights(one, which, each["layer"]).mean(dim=0)
        step = (mean + torch.eye(len(mean), dtype=mean.dtype, device=mean.device)) / 2
        through = step if through is None else step @ through
    assert through is not None
    return through
