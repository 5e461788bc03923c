"""The training loss, by torch's own operations or, for the caches of a CPU, in chunks.

In: the stream at real positions, the output weights, the right tokens. Out: the summed cross-entropy with label smoothing;
for two passes over the same tokens also how far they disagree (R-Drop). In chunks, the logits of a whole batch, the largest
matrix of all, are never held. Told in docs/model.md, "The head and the loss".
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_NUMBERS = 1 << 20    # logits worked out at a time: 4 MB stay in the cache of a core
CHUNK_OF_BOTH = 1 << 19    # where more matrices of that size are needed at once: half as many

Grads = tuple[Tensor, Tensor, Tensor | None]  # of x, of the weight, of the bias


def plain_loss(logits: Tensor, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
    """The same from all logits at once, (tokens, vocab): on a GPU, in bf16, and for small vocabularies."""
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    if agreement:
        p, q = logits.log_softmax(dim=-1).chunk(2)
        ways = F.kl_div(p, q, reduction="sum", log_target=True), F.kl_div(q, p, reduction="sum", log_target=True)
        loss = loss + agreement * (ways[0] + ways[1]) / 2
    return loss


class ChunkedLoss(torch.autograd.Function):
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
        if needed:
            _target_part(x, weight, targets, smoothing, grads)
            ctx.save_for_backward(*grads)
        return lse.sum() - _target_score(x, weight, bias, targets, smoothing)

    @staticmethod
    @once_differentiable  # a second derivative is refused, not silently wrong
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*_scaled(ctx, grad), None, None)


class AgreeingLoss(torch.autograd.Function):
    """R-Drop: the halves of x are two passes over the same tokens; what they say should agree.

    loss = CE(p) + CE(q) + weight J, with J = (KL(p || q) + KL(q || p)) / 2 summed over tokens
    d J / d z_p = (p (1 + D - KL(p || q)) - q) / 2, with D = log p - log q; for z_q with p and q exchanged
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, agreement: float) -> Tensor:
        half, rows = len(x) // 2, max(1, CHUNK_OF_BOTH // (2 * len(weight)))
        passes, said = x.view(2, half, -1), x.new_empty(2, half)                      # (pass, tokens, d_model), (pass, tokens)
        grads = (torch.empty_like(x), torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias))
        apart = x.new_zeros(())
        for start in range(0, half, rows):
            chunk = slice(start, start + rows)
            said[:, chunk], one = _agreeing_part(passes[:, chunk], weight, bias, agreement, (grads[0].view_as(passes)[:, chunk], *grads[1:]))
            apart += one
        _target_part(x, weight, targets, smoothing, grads)
        ctx.save_for_backward(*grads)
        return said.sum() - _target_score(x, weight, bias, targets, smoothing) + agreement * apart

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (*_scaled(ctx, grad), None, None, None)


def _scaled(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients worked out in the forward pass, times what comes from above."""
    wanted = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
    return tuple(one * grad if one is not None and asked else None for one, asked in wanted)


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


def _target_score(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
    """(1 - s) z_target + s mean z, summed over all tokens."""
    total = (1 - smoothing) * (x * weight[targets]).sum() + smoothing * (x @ weight.mean(dim=0)).sum()
    if bias is not None:
        total += (1 - smoothing) * bias[targets].sum() + smoothing * len(x) * bias.mean()
    return total


def _target_part(x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, grads: Grads) -> None:
    """Subtract what the targets and the smoothing ask for from the gradients."""
    grad_x, grad_weight, grad_bias = grads
    even = smoothing / len(weight)
    grad_x.sub_(weight[targets], alpha=1 - smoothing).sub_(weight.sum(dim=0), alpha=even)
    grad_weight.index_add_(0, targets, x, alpha=smoothing - 1).sub_(x.sum(dim=0), alpha=even)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, x.new_ones(len(x)), alpha=smoothing - 1).sub_(even * len(x))


def _agreeing_part(x: Tensor, weight: Tensor, bias: Tensor | None, agreement: float, grads: Grads) -> tuple[Tensor, Tensor]:
    """lse of each row of both passes and their disagreement; all of the gradient that is not the targets' goes into grads."""
    logits = F.linear(x, weight, bias)                                                # (2, rows, vocab)
    lse = logits.logsumexp(dim=-1, keepdim=True)
    logs = logits.sub_(lse)
    chances = logs.exp()
    apart = torch.stack([logs[0] - logs[1], logs[1] - logs[0]])                       # D of p, D of q
    ways = torch.linalg.vecdot(chances, apart).unsqueeze(-1)                          # KL(p || q), KL(q || p): (2, rows, 1)
    half = agreement / 2
    steep = apart.sub_(ways).mul_(half).add_(1 + half).mul_(chances)                  # in place: wide matrices
    steep[0].sub_(chances[1], alpha=half)
    steep[1].sub_(chances[0], alpha=half)
    grad_x, grad_weight, grad_bias = grads
    grad_x.copy_(steep @ weight)
    grad_weight.addmm_(steep.flatten(0, 1).T, x.flatten(0, 1))
    if grad_bias is not None:
        grad_bias.add_(steep.sum(dim=(0, 1)))
    return lse[..., 0], ways.sum() / 2
