"""Views of attention weights: single heads, means, weights between words, thumbnails, and rollout.

See docs/explore.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.explore.api_error import ApiError
from qkv.explore.passes import Pass
from qkv.explore.trace import attention_kinds, sides_of

THUMBNAIL_SIZE = 32  # maximum rows and columns of a thumbnail


def core_of(pass_: Pass, kind: str, layer: int) -> str:
    """The module path of the attention core of this kind and layer."""
    if layer not in [entry["layer"] for entry in layers_of(pass_, kind) or []]:
        raise ApiError(
            404,
            "There is no attention '{kind}' in layer {layer} of this model.",
            kind=kind[:20],
            layer=layer,
        )
    stack, part = ("decoder", "cross") if kind == "cross" else (kind, "attn")
    return f"{stack}.layers.{layer}.{part}.branch.core"


def layers_of(pass_: Pass, kind: str) -> list[dict[str, Any]] | None:
    """The layers with attention of this kind and their numbers of heads; None if there are none."""
    kinds = {attention["name"]: attention["layers"] for attention in attention_kinds(pass_)}
    return kinds.get(kind)


def weights(pass_: Pass, kind: str, layer: int) -> Tensor:
    """Attention weights, (heads, query, key)."""
    return pass_.weights(core_of(pass_, kind, layer))


def select_head(grid: Tensor, head: str | None) -> Tensor:
    """All heads, one of them, or their mean."""
    if head is None:
        return grid
    if head == "mean":
        return grid.mean(dim=0)
    if not (head.isascii() and head.isdigit() and len(head) < 6 and int(head) < len(grid)):
        raise ApiError(
            404,
            "There is no head '{head}': this layer has {n_heads} heads.",
            head=head[:20],
            n_heads=len(grid),
        )
    return grid[int(head)]


def word_weights(pass_: Pass, kind: str, layer: int) -> Tensor:
    """Attention weights between words, (heads, words, words)."""
    rows, columns = (
        ("target", "source")
        if kind == "cross"
        else (("source",) * 2 if kind == "encoder" else ("target",) * 2)
    )
    sides = sides_of(pass_)
    return merge_to_words(
        weights(pass_, kind, layer), sides[rows]["words"], sides[columns]["words"]
    )


def merge_to_words(
    grid: Tensor, rows: list[dict[str, Any]], columns: list[dict[str, Any]]
) -> Tensor:
    """(heads, query, key) -> (heads, words, words): sum over a word's keys, mean over queries."""
    queries = torch.stack(
        [grid[:, word["tokens"]].mean(dim=1) for word in rows], dim=1
    )  # (heads, words, key)
    return torch.stack(
        [queries[:, :, word["tokens"]].sum(dim=2) for word in columns], dim=2
    )  # (heads, words, words)


def thumbnails(pass_: Pass, kind: str, layer: int) -> Tensor:
    """Every head max-pooled to (heads, <= 32, <= 32), uint8 from 0 to 255."""
    grid = weights(pass_, kind, layer)
    size = [min(THUMBNAIL_SIZE, length) for length in grid.shape[1:]]
    return (F.adaptive_max_pool2d(grid[None].float(), size)[0] * 255).round().to(torch.uint8)


def mean_over_layers(pass_: Pass, kind: str) -> Tensor:
    """Mean attention weights over every head of every layer, (query, key)."""
    layers = layers_of(pass_, kind)
    if layers is None:
        raise ApiError(404, "There is no attention '{kind}' in this model.", kind=kind[:20])
    sums = [weights(pass_, kind, entry["layer"]).sum(dim=0) for entry in layers]  # (query, key)
    return torch.stack(sums).sum(dim=0) / sum(entry["heads"] for entry in layers)


def rollout(pass_: Pass, kind: str) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020), (query, key).

    The product over layers of (mean of heads + I) / 2, where I is the residual connection.
    """
    layers = layers_of(pass_, kind) if kind != "cross" else None
    if layers is None:
        raise ApiError(404, "There is no rollout of '{kind}'.", kind=kind[:20])
    product: Tensor | None = None
    for entry in layers:
        mean = weights(pass_, kind, entry["layer"]).mean(dim=0)
        step = (mean + torch.eye(len(mean), dtype=mean.dtype, device=mean.device)) / 2
        product = step if product is None else step @ product
    assert product is not None
    return product
