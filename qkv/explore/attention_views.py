"""Views of attention weights: single heads, means, weights between words, thumbnails, and rollout.

See docs/guides/inspect.md.
"""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.explored_model import stacks_of
from qkv.explore.passes import Pass
from qkv.explore.serialize import JsonObject
from qkv.explore.trace import ATTENTION, attention_layers, sides_of
from qkv.web.api_errors import ApiError

THUMBNAIL_SIZE = 32  # maximum rows and columns of a thumbnail


def weights(pass_: Pass, kind: str, layer: int, head: str | None = None) -> Tensor:
    """Attention weights of all heads, (heads, query, key), or of one of them, or their mean."""
    if layer not in attention_layers(pass_, kind):
        raise ApiError(
            404,
            "There is no attention '{kind}' in layer {layer} of this model.",
            kind=kind,
            layer=layer,
        )
    stack, part = ATTENTION[kind].stack, ATTENTION[kind].part
    path = f"{stack}.layers.{layer}.{part}.branch.core"
    return select_head(pass_.weights(path), head)


def select_head(grid: Tensor, head: str | None) -> Tensor:
    """All heads, one of them, or their mean."""
    if head is None:
        return grid
    if head == "mean":
        return grid.mean(dim=0)
    if not (head.isdigit() and len(head) < 6 and int(head) < len(grid)):
        raise ApiError(
            404,
            "There is no head '{head}': this layer has {n_heads} heads.",
            head=head,
            n_heads=len(grid),
        )
    return grid[int(head)]


def word_weights(pass_: Pass, kind: str, layer: int, head: str | None = None) -> Tensor:
    """Attention weights between words, (heads, words, words), or of one head, or their mean."""
    grid, sides, attention = weights(pass_, kind, layer), sides_of(pass_), ATTENTION[kind]
    rows, columns = sides[attention.rows]["words"], sides[attention.columns]["words"]
    return select_head(merge_to_words(grid, rows, columns), head)


def merge_to_words(
    grid: Tensor, rows: Sequence[JsonObject], columns: Sequence[JsonObject]
) -> Tensor:
    """(heads, query, key) -> (heads, words, words): sum over a word's keys, mean over queries."""
    queries = [grid[:, word["tokens"]].mean(dim=1) for word in rows]
    grid = torch.stack(queries, dim=1)  # (heads, words, key)
    keys = [grid[:, :, word["tokens"]].sum(dim=2) for word in columns]
    return torch.stack(keys, dim=2)  # (heads, words, words)


def thumbnails(pass_: Pass, kind: str, layer: int) -> Tensor:
    """Every head max-pooled to (heads, <= 32, <= 32), uint8 from 0 to 255."""
    grid = weights(pass_, kind, layer)
    size = [min(THUMBNAIL_SIZE, length) for length in grid.shape[1:]]
    return (F.adaptive_max_pool2d(grid[None].float(), size)[0] * 255).round().to(torch.uint8)


def mean_over_layers(pass_: Pass, kind: str) -> Tensor:
    """Mean attention weights over every head of every layer, (query, key)."""
    layers = attention_layers(pass_, kind)
    if not layers:
        raise ApiError(404, "There is no attention '{kind}' in this model.", kind=kind)
    sums = [weights(pass_, kind, layer).sum(dim=0) for layer in layers]  # (query, key)
    return torch.stack(sums).sum(dim=0) / sum(layers.values())


def rollout(pass_: Pass, kind: str) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020), (query, key).

    The product over layers of (mean of heads + I) / 2, where I is the residual connection, if any.
    """
    layers = attention_layers(pass_, kind)
    if kind == "cross" or not layers:
        raise ApiError(404, "There is no rollout of '{kind}'.", kind=kind)
    means = [weights(pass_, kind, layer, "mean") for layer in layers]
    stack = stacks_of(pass_.spec)[ATTENTION[kind].stack].each_layer()
    steps = [
        (mean + torch.eye(len(mean)).to(mean)) / 2 if stack[number].residual else mean
        for number, mean in zip(layers, means, strict=True)
    ]
    return reduce(lambda product, step: step @ product, steps)
