"""Guided alignment: one cross-attention head is trained to give a word alignment.

GuidedCore keeps the log weights of that head in training; all heads still use the fused kernel.
See docs/guides/training.md, "Guided alignment".
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.model.attention import SdpaCore
from qkv.model.attention_context import AttentionMask
from qkv.model.eager_core import set_submodule
from qkv.model.transformer import Transformer


class AlignmentHead(NamedTuple):
    """The cross-attention head that aligns, both indices from 0; saved as alignment.json."""

    layer: int
    head: int


class GuidedCore(SdpaCore):
    """SdpaCore that in training also computes the log weights of one head, (batch, query, key)."""

    def __init__(self, head: int):
        super().__init__()
        self.head = head
        self.log_weights: Tensor | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, scale: float) -> Tensor:
        if self.training and torch.is_grad_enabled():
            kv_head = self.head * k.shape[1] // q.shape[1]
            self.log_weights = head_log_weights(q[:, self.head], k[:, kv_head], mask, scale)
        return super().forward(q, k, v, mask, scale)

    def take_log_weights(self) -> Tensor:
        """The log weights of the last pass; the reference is dropped, which frees the graph."""
        assert self.log_weights is not None, "no training pass has run"
        weights, self.log_weights = self.log_weights, None
        return weights


def head_log_weights(q: Tensor, k: Tensor, mask: AttentionMask, scale: float) -> Tensor:
    """log softmax(q k^T * scale) of one head.

    (batch, query, d_head) and (batch, key, d_head) -> (batch, query, key).
    """
    scores = q @ k.transpose(-1, -2) * scale                       # (batch, query, key)
    if mask.allowed is not None:
        scores = scores.masked_fill(~mask.allowed[:, 0], -math.inf)
    return scores.log_softmax(dim=-1)


def guide(model: Transformer, chosen: AlignmentHead) -> GuidedCore:
    """Replace the core of the chosen head's layer by a GuidedCore; results stay the same."""
    core = GuidedCore(chosen.head).train(model.training)
    set_submodule(model, core_path(chosen.layer), core)
    return core


def core_path(layer: int) -> str:
    """The module path of a layer's cross-attention core."""
    return f"decoder.layers.{layer}.cross.branch.core"


def guided_loss(log_weights: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropy of gold and predicted weights, summed; both (batch, target, source)."""
    return -(gold * log_weights.masked_fill(gold == 0, 0.0)).sum()  # 0 * -inf would be nan
