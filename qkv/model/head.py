"""The way out: from the stream to scores over the vocabulary, or to one vector per sentence.

In: the stream after the last layer. Out: logits; or the training loss, worked out in chunks, so that the logits of a
whole batch, the largest matrix of all, are never held. Told in docs/model.md, "The head and the loss".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model import spec as s
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.norms import make_norm

CHUNK_NUMBERS = 1 << 20  # logits worked out at a time: 4 MB stay in the cache of a core


class LmHead(nn.Module):
    """logits = x W^T + b; tied: W is the embedding table itself."""

    def __init__(self, head: s.LmHead, vocab_size: int, d_model: int):
        super().__init__()
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if head.bias else None

    def prepared(self, x: Tensor) -> Tensor:
        """What comes before the great product: nothing here."""
        return x

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return F.linear(self.prepared(x), table if self.weight is None else self.weight, self.bias)  # (..., vocab)

    def loss(self, x: Tensor, table: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """The summed cross-entropy of (tokens, d_model) against (tokens,) targets."""
        weight = table if self.weight is None else self.weight
        return _ChunkedLoss.apply(self.prepared(x), weight, self.bias, targets, smoothing)


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


class _ChunkedLoss(torch.autograd.Function):
    """Cross-entropy with label smoothing; gradients are worked out at once, chunk by chunk, while logits are at hand.

    loss = (1 - s) (lse - z_target) + s (lse - mean z), with lse = log sum exp z
    d loss / d z = softmax(z) - (1 - s) onehot(target) - s / vocab
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
        wanted = ctx.needs_input_grad
        grad_x = torch.empty_like(x) if wanted[0] else None
        grad_weight = torch.zeros_like(weight) if wanted[1] else None
        grad_bias = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        total = x.new_zeros(())
        rows = max(1, CHUNK_NUMBERS // len(weight))
        for start in range(0, len(x), rows):
            part, target = x[start : start + rows], targets[start : start + rows, None]
            logits = F.linear(part, weight, bias)                                     # (rows, vocab)
            lse = logits.logsumexp(dim=-1, keepdim=True)
            total += (lse - (1 - smoothing) * logits.gather(1, target)).sum()
            if smoothing:
                total -= smoothing * logits.mean(dim=-1).sum()
            if any(wanted[:3]):
                slope = logits.sub_(lse).exp_()                                       # softmax, in place
                slope.scatter_add_(1, target, slope.new_full(target.shape, smoothing - 1))
                if smoothing:
                    slope.sub_(smoothing / len(weight))
                if grad_x is not None:
                    torch.mm(slope, weight, out=grad_x[start : start + rows])
                if grad_weight is not None:
                    grad_weight.addmm_(slope.T, part)
                if grad_bias is not None:
                    grad_bias += slope.sum(dim=0)
        ctx.save_for_backward(grad_x, grad_weight, grad_bias)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*(one if one is None else one * grad for one in ctx.saved_tensors), None, None)


def make_head(spec: s.Spec) -> nn.Module | None:
    stack = spec.decoder or spec.encoder
    assert stack is not None
    match spec.head:
        case s.LmHead(): return LmHead(spec.head, spec.vocab_size, spec.d_model)
        case s.MaskedHead(): return MaskedHead(spec.head, stack.layers[-1].norm, spec.vocab_size, spec.d_model)
        case s.Pooler(): return Pooler(spec.d_model)
        case None: return None
