"""Heads: from the last hidden states to logits and the training loss, or to one sentence vector.

See docs/explanation/model.md, "Output head and loss".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.cross_entropy import cross_entropies
from qkv.model import spec as s
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.norms import make_norm


class LmHead(nn.Module):
    """Language-model head: logits = x W^T + b; tied: W is the embedding table."""

    def __init__(self, head: s.LmHead, vocab_size: int, d_model: int):
        super().__init__()
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if head.bias else None

    def prepared(self, x: Tensor) -> Tensor:
        """The transform before the product with the vocabulary: the identity here."""
        return x

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        weight = table if self.weight is None else self.weight
        return F.linear(self.prepared(x), weight, self.bias)       # (..., vocab)

    def losses(
        self, x: Tensor, table: Tensor, targets: Tensor, smoothing: float, r_drop: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Summed losses of (tokens, d_model) and targets (tokens,); see `cross_entropies`."""
        weight = table if self.weight is None else self.weight
        return cross_entropies(self.prepared(x), weight, self.bias, targets, smoothing, r_drop)


class MaskedHead(LmHead):
    """BERT's masked-language-model head: logits = norm(act(dense(x))) W^T + b, W tied."""

    def __init__(self, head: s.MaskedHead, norm: s.Norm, vocab_size: int, d_model: int):
        super().__init__(s.LmHead(tied=True, bias=True), vocab_size, d_model)
        self.dense, self.norm = nn.Linear(d_model, d_model), make_norm(norm, d_model)
        self.activation = ACTIVATIONS[head.activation]

    def prepared(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Pooler(nn.Module):
    """BERT's pooler: tanh(dense(first token)), one vector per sentence."""

    def __init__(self, d_model: int):
        super().__init__()
        self.dense = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return self.dense(x[:, 0]).tanh()                          # (batch, d_model)


def make_head(spec: s.Spec) -> nn.Module | None:
    stack = spec.decoder or spec.encoder
    assert stack is not None
    norm = stack.layers[-1].norm
    match spec.head:
        case s.LmHead(): return LmHead(spec.head, spec.vocab_size, spec.d_model)
        case s.MaskedHead(): return MaskedHead(spec.head, norm, spec.vocab_size, spec.d_model)
        case s.Pooler(): return Pooler(spec.d_model)
        case None: return None
