"""The way out: from the stream to scores over the vocabulary, or to one vector per sentence.

In: the stream after the last layer. Out: logits; or the training loss, worked out in chunks, so that the logits of a
whole batch, the largest matrix of all, are never held. Told in docs/model.md, "The head and the loss".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.model import spec as s
from qkv.model.feed_forward import ACTIVATIONS
from qkv.model.norms import make_norm

CHUNK_NUMBERS = 1 << 20  # logits worked out at a time: 4 MB stay in the cache of a core
FEW = 512  # tokens of a vocabulary: below, torch's own loss is cheaper (65 characters: 0.5 ms instead of 0.9)


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
        bias: Tensor | None = self.bias
        if not torch.is_grad_enabled():  # an evaluation: without this, gradients would be worked out all the same
            weight, bias = weight.detach(), None if bias is None else bias.detach()
        x = self.prepared(x)
        if len(weight) < FEW:
            return F.cross_entropy(F.linear(x, weight, bias), targets, reduction="sum", label_smoothing=smoothing)
        return _ChunkedLoss.apply(x, weight, bias, targets, smoothing)


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

    loss = lse - (1 - s) z_target - s mean z, with z = W x + b and lse = log sum exp z
    d loss / d z = softmax(z) - (1 - s) onehot(target) - s / vocab

    Only the softmax needs the logits; the other two terms are sums over rows of W and x, taken once for all chunks.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
        needed = any(ctx.needs_input_grad)
        grads = (torch.empty_like(x), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias))
        lse = x.new_empty(len(x), 1)
        rows = max(1, CHUNK_NUMBERS // len(weight))
        for start in range(0, len(x), rows):
            chunk = slice(start, start + rows)
            lse[chunk] = _softmax_part(x[chunk], weight, bias, needed, (grads[0][chunk], *grads[1:]))
        mean = weight.mean(dim=0)                                                     # (d_model,)
        total = lse.sum() - (1 - smoothing) * (x * weight[targets]).sum() - smoothing * (x @ mean).sum()
        if bias is not None:
            total -= (1 - smoothing) * bias[targets].sum() + smoothing * len(x) * bias.mean()
        if needed:
            _target_part(x, weight, targets, smoothing, grads)
            ctx.save_for_backward(*grads)
        return total

    @staticmethod
    @once_differentiable  # a second derivative is refused, not silently wrong
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        return (*(one * grad if one is not None and asked else None for one, asked in wanted), None, None)


Grads = tuple[Tensor, Tensor, Tensor | None]  # of x, of the weight, of the bias


def _softmax_part(x: Tensor, weight: Tensor, bias: Tensor | None, needed: bool, grads: Grads) -> Tensor:
    """lse of each row, (rows, 1); softmax(z) W, x softmax(z) and softmax(z) go into the gradients."""
    logits = F.linear(x, weight, bias)                                                # (rows, vocab)
    top = logits.amax(dim=-1, keepdim=True)
    powers = logits.sub_(top).exp_()                                                  # in place: the largest matrix
    total = powers.sum(dim=-1, keepdim=True)
    if needed:
        grad_x, grad_weight, grad_bias = grads
        # Dividing the thin factors by the total instead of the wide one saves a pass over the vocabulary.
        torch.mm(powers, weight, out=grad_x).div_(total)
        grad_weight.addmm_(powers.T, x / total)
        if grad_bias is not None:
            grad_bias.addmv_(powers.T, 1 / total[:, 0])
    return top + total.log()


def _target_part(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, grads: Grads) -> None:
    """Subtract what the targets and the smoothing ask for from the gradients."""
    grad_x, grad_weight, grad_bias = grads
    even = smoothing / len(weight)
    grad_x.sub_(weight[targets], alpha=1 - smoothing).sub_(weight.sum(dim=0), alpha=even)
    grad_weight.index_add_(0, targets, x, alpha=smoothing - 1).sub_(x.sum(dim=0), alpha=even)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, x.new_ones(len(x)), alpha=smoothing - 1).sub_(even * len(x))


def make_head(spec: s.Spec) -> nn.Module | None:
    stack = spec.decoder or spec.encoder
    assert stack is not None
    match spec.head:
        case s.LmHead(): return LmHead(spec.head, spec.vocab_size, spec.d_model)
        case s.MaskedHead(): return MaskedHead(spec.head, stack.layers[-1].norm, spec.vocab_size, spec.d_model)
        case s.Pooler(): return Pooler(spec.d_model)
        case None: return None
