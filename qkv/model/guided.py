"""Guided alignment: one cross-attention head whose weights are trained to be a word alignment.

In: an encoder-decoder model. Out: the same model, whose chosen core keeps the log weights of one head in training; all heads
still go through the fused kernel. Explained in docs/training.md, "Guided alignment".
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.attention import FusedCore
from qkv.model.explained import put
from qkv.model.spec import Heads, Spec
from qkv.model.transformer import Transformer
from qkv.model.view import Sight


class AlignmentHead(NamedTuple):
    """The cross-attention head that aligns, both numbers from 0; saved as alignment.json beside a model."""

    layer: int
    head: int


def alignment_head(stored: Any, spec: Spec, where: object) -> AlignmentHead | None:
    """The head that alignment.json names, if it names one that the model has."""
    if stored is None:
        return None
    layers = spec.decoder.each_layer() if spec.decoder is not None else []
    heads = [layer.cross.n_heads if isinstance(layer.cross, Heads) else 0 for layer in layers]
    match stored:
        case {"layer": int(layer), "head": int(head)} if 0 <= layer < len(heads) and 0 <= head < heads[layer]:
            return AlignmentHead(layer, head)
    wrong = _("names no cross-attention head of this model")
    raise QkvError(where, f"{wrong}: {str(stored)[:80]}",
                   _("write a layer and a head, both from 0"))


class GuidedCore(FusedCore):
    """The fused core; in training it also computes the log weights of one head, (batch, query, key)."""

    def __init__(self, head: int):
        super().__init__()
        self.head = head
        self.log_weights: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sight: Sight, scale: float) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.log_weights = head_log_weights(q[:, self.head], k[:, self.head * k.shape[1] // q.shape[1]], sight, scale)
        return super().forward(q, k, v, sight, scale)

    def take_log_weights(self) -> Tensor:
        """The log weights of the last pass; they are given away, so that no graph outlives its step."""
        assert self.log_weights is not None, "a training pass comes first"
        weights, self.log_weights = self.log_weights, None
        return weights


def head_log_weights(q: Tensor, k: Tensor, sight: Sight, scale: float) -> Tensor:
    """log softmax(q k^T * scale) of one head, (batch, query, d_head) and (batch, key, d_head) -> (batch, query, key)."""
    scores = q @ k.transpose(-1, -2) * scale                       # (batch, query, key)
    if sight.visible is not None:
        scores = scores.masked_fill(~sight.visible[:, 0], -math.inf)
    return scores.log_softmax(dim=-1)


def guide(model: Transformer, chosen: AlignmentHead) -> GuidedCore:
    """Put a guided core at the chosen head; weights and results of the model stay the same."""
    core = GuidedCore(chosen.head).train(model.training)
    put(model, core_path(chosen.layer), core)
    return core


def core_path(layer: int) -> str:
    """The module path of a layer's cross-attention core."""
    return f"decoder.layers.{layer}.cross.branch.core"


def guided_loss(log_weights: Tensor, gold: Tensor) -> Tensor:
    """The cross-entropy of gold and predicted weights, summed over target tokens; both (batch, target, source)."""
    return -(gold * log_weights.masked_fill(gold == 0, 0.0)).sum()           # 0 * -inf would not be 0
