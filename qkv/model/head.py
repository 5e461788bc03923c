"""Heads: from the last hidden states to logits and the training loss, or to one vector per sentence.

Explained in docs/model.md, "The head and the loss".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.cross_entropy import cross_entropy
from qkv.model import spec as s
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.norms import make_norm


class LmHead(nn.Module):
    """logits = x W^T + b; tied: W is the embedding table itself."""

    def __init__(self, head: s.LmHead, vocab_size: int, d_model: int):
        super().__init__()
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if head.bias else None

    def prepared(self, x: Tensor) -> Tensor:
        """What is applied before the product with the vocabulary: nothing here."""
        return x

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.prepared(x), table if self.weight is None else self.weight, self.bias)  # (..., vocab)

    def loss(self, x: Tensor, table: Tensor, targets: Tensor, smoothing: float, r_drop: float = 0.0) -> Tensor:
        """The summed cross-entropy of (tokens, d_model) against (tokens,) targets; see `cross_entropy`."""
        weight = table if self.weight is None else self.weight
        return cross_entropy(self.prepared(x), weight, self.bias, targets, smoothing, r_drop)


class MaskedHead(LmHead):
    """logits = norm(act(dense(x))) W^T + b with the tied table: BERT's."""

    def __init__(self, head: s.MaskedHead, norm: s.Norm, vocab_size: int, d_model: int):
        super().__init__(s.LmHead(tied=True, bias=True), vocab_size, d_model)
        self.dense, self.norm = nn.Linear(d_model, d_model), make_norm(norm, d_model)
        self.activation = ACTIVATIONS[head.activation]

    def prepared(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Pooler(nn.Module):
    """tanh(dense(first token)): one vector per sentence."""

    def __init__(self, d_model: int):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.dense(x[:, 0]).tanh()  # (batch, d_model)


def make_head(spec: s.Spec) -> nn.Module | None:
    stack = spec.decoder or spec.encoder
    assert stack is not None
    match spec.head:
        case s.LmHead(): return LmHead(spec.head, spec.vocab_size, spec.d_model)
        case s.MaskedHead(): return MaskedHead(spec.head, stack.layers[-1].norm, spec.vocab_size, spec.d_model)
        case s.Pooler(): return Pooler(spec.d_model)
        case None: return None
