"""Summed cross-entropy with label smoothing, and R-Drop, from hidden states and the output weights.

On a CPU the logits, the largest matrix of a training step, are computed in chunks that fit in the
cache of a core, their gradients with them; the whole matrix is never stored. Elsewhere, in bfloat16
and for small vocabularies torch computes the loss. See docs/explanation/model.md.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.kernels.calling import is_cpu_float

CHUNK_LOGITS = 1 << 20  # computed at a time: 4 MB stay in the cache of a core
R_DROP_CHUNK_LOGITS = 1 << 19  # half as many: R-Drop needs more matrices of that size at once
MIN_CHUNKED_VOCAB = 512  # below, torch is faster (65 characters: 0.5 ms instead of 0.9)

Grads = tuple[Tensor, Tensor, Tensor | None]  # of x, of the weight, of the bias


def cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> Tensor:
    """The cross-entropy of x W^T + b against the targets, summed over the tokens.

    See `cross_entropies` for the arguments.
    """
    return cross_entropies(x, weight, bias, targets, smoothing, r_drop)[0]


def cross_entropies(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    r_drop: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss, and the cross-entropy without smoothing and R-Drop, which has no gradient.

    Args:
        x: Hidden states, (tokens, d_model).
        weight: Output weights W, (vocab, d_model).
        bias: (vocab,), or None.
        targets: Token ids, (tokens,).
        smoothing: Label smoothing, the probability mass spread uniformly over the vocabulary.
        r_drop: Weight of the KL divergence of two passes over the same tokens, the halves of x.
    """
    if not torch.is_grad_enabled():  # otherwise the gradients would be computed with the loss
        x, weight, bias = x.detach(), weight.detach(), None if bias is None else bias.detach()
    autocast = torch.is_autocast_enabled("cpu")  # the logits would not have the type of the sums
    if len(weight) < MIN_CHUNKED_VOCAB or autocast or not is_cpu_float(x):
        return _from_logits(F.linear(x, weight, bias), targets, smoothing, r_drop)
    return _ChunkedCrossEntropy.apply(x, weight, bias, targets, smoothing, r_drop)  # type: ignore[no-untyped-call]


def _from_logits(
    logits: Tensor, targets: Tensor, smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """The same from all logits at once, (tokens, vocab)."""
    loss = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing)
    unsmoothed = loss.detach()
    if smoothing:  # (1 - s) z_target + s mean z instead of z_target: no second softmax
        scores = logits.detach()
        difference = scores.mean(dim=-1) - scores.gather(1, targets[:, None])[:, 0]  # (tokens,)
        unsmoothed = unsmoothed + smoothing * difference.sum()
    if r_drop:
        log_p, log_q = logits.log_softmax(dim=-1).chunk(2)
        kl_qp = F.kl_div(log_p, log_q, reduction="sum", log_target=True)
        kl_pq = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
        loss = loss + r_drop * (kl_qp + kl_pq) / 2
    return loss, unsmoothed


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The forward pass computes the gradients too, chunk by chunk, from logits in the cache.

    loss = lse - (1 - s) z_target - s mean z, with z = W x + b and lse = log sum exp z
    d loss / d z = softmax(z) - (1 - s) onehot(target) - s / vocab

    Only the softmax needs the logits; the other terms are sums over rows of W and x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor]:
        needs_grad, grads = any(ctx.needs_input_grad), _empty_grads(x, weight, bias)
        if r_drop:
            lse, divergence = _r_drop_chunks(x, weight, bias, r_drop, grads)
        else:
            lse = _softmax_chunks(x, weight, bias, needs_grad, grads)
            divergence = x.new_zeros(())
        if needs_grad:
            _subtract_targets(x, weight, targets, smoothing, grads)
            ctx.save_for_backward(*grads)
        target, mean = _scores(x, weight, bias, targets)
        score = (1 - smoothing) * target + smoothing * mean
        unsmoothed = lse.sum() - target
        ctx.mark_non_differentiable(unsmoothed)
        return lse.sum() - score + r_drop * divergence, unsmoothed

    @staticmethod
    @once_differentiable  # a second derivative raises instead of being wrong
    def backward(ctx: Any, grad: Tensor, _unsmoothed: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the forward pass, times the gradient of the loss."""
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        grads = (saved * grad if saved is not None and needed else None for saved, needed in pairs)
        return (*grads, None, None, None)


def _empty_grads(x: Tensor, weight: Tensor, bias: Tensor | None) -> Grads:
    """Of x to be written, of the weight and the bias to be added to."""
    bias_grad = None if bias is None else torch.zeros_like(bias)
    return torch.empty_like(x), torch.zeros_like(weight), bias_grad


def _softmax_chunks(
    x: Tensor, weight: Tensor, bias: Tensor | None, needs_grad: bool, grads: Grads
) -> Tensor:
    """lse of each token, (tokens, 1); the softmax(z) term is added to the gradients."""
    lse, rows = x.new_empty(len(x), 1), max(1, CHUNK_LOGITS // len(weight))
    for start in range(0, len(x), rows):
        chunk = slice(start, start + rows)
        chunk_grads = (grads[0][chunk], *grads[1:])
        lse[chunk] = _softmax_part(x[chunk], weight, bias, needs_grad, chunk_grads)
    return lse


def _softmax_part(
    x: Tensor, weight: Tensor, bias: Tensor | None, needs_grad: bool, grads: Grads
) -> Tensor:
    """lse of each row, (rows, 1); the softmax(z) term is added to the gradients."""
    logits = F.linear(x, weight, bias)  # (rows, vocab)
    top = logits.amax(dim=-1, keepdim=True)
    exps = logits.sub_(top).exp_()  # in place: the largest matrix
    total = exps.sum(dim=-1, keepdim=True)
    if needs_grad:
        grad_x, grad_weight, grad_bias = grads
        # Dividing the small factors by the total, not `exps`, saves a pass over the logits.
        torch.mm(exps, weight, out=grad_x).div_(total)
        grad_weight.addmm_(exps.T, x / total)
        if grad_bias is not None:
            grad_bias.addmv_(exps.T, 1 / total[:, 0])
    return top + total.log()


def _scores(
    x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """z_target and mean z, each summed over all tokens."""
    target, mean = (x * weight[targets]).sum(), (x @ weight.mean(dim=0)).sum()
    if bias is not None:
        target, mean = target + bias[targets].sum(), mean + len(x) * bias.mean()
    return target, mean


def _subtract_targets(
    x: Tensor, weight: Tensor, targets: Tensor, smoothing: float, grads: Grads
) -> None:
    """The part of the gradients of the targets and of the smoothing, which needs no logits."""
    grad_x, grad_weight, grad_bias = grads
    uniform = smoothing / len(weight)
    grad_x.sub_(weight[targets], alpha=1 - smoothing).sub_(weight.sum(dim=0), alpha=uniform)
    grad_weight.index_add_(0, targets, x, alpha=smoothing - 1).sub_(x.sum(dim=0), alpha=uniform)
    if grad_bias is not None:
        grad_bias.index_add_(0, targets, x.new_ones(len(x)), alpha=smoothing - 1)
        grad_bias.sub_(uniform * len(x))


def _r_drop_chunks(
    x: Tensor, weight: Tensor, bias: Tensor | None, r_drop: float, grads: Grads
) -> tuple[Tensor, Tensor]:
    """R-Drop: the halves of x are two passes over the same tokens, with distributions p and q.

    loss = CE(p) + CE(q) + r_drop J, with J = (KL(p || q) + KL(q || p)) / 2 summed over tokens
    d J / d z_p = (p (1 + D - KL(p || q)) - q) / 2, with D = log p - log q; z_q: p and q exchanged

    Returns lse (2, tokens) and J; the gradients have all terms but those of the targets.
    """
    half, rows = len(x) // 2, max(1, R_DROP_CHUNK_LOGITS // (2 * len(weight)))
    passes, lse = x.view(2, half, -1), x.new_empty(2, half)  # (2, tokens, d_model), (2, tokens)
    divergence = x.new_zeros(())
    for start in range(0, half, rows):
        chunk = slice(start, start + rows)
        chunk_grads = (grads[0].view_as(passes)[:, chunk], *grads[1:])
        lse[:, chunk], chunk_divergence = _r_drop_part(
            passes[:, chunk], weight, bias, r_drop, chunk_grads
        )
        divergence += chunk_divergence
    return lse, divergence


def _r_drop_part(
    x: Tensor, weight: Tensor, bias: Tensor | None, r_drop: float, grads: Grads
) -> tuple[Tensor, Tensor]:
    """lse of each row of both passes, and J; their gradients go into `grads`."""
    logits = F.linear(x, weight, bias)  # (2, rows, vocab)
    lse = logits.logsumexp(dim=-1, keepdim=True)
    log_probs = logits.sub_(lse)
    probs = log_probs.exp()
    log_p, log_q = log_probs
    difference = torch.stack([log_p - log_q, log_q - log_p])  # D of p, D of q
    # KL(p || q), KL(q || p): (2, rows, 1)
    kl = torch.linalg.vecdot(probs, difference).unsqueeze(-1)
    half = r_drop / 2  # below, in place: the matrices are large
    grad_logits = difference.sub_(kl).mul_(half).add_(1 + half).mul_(probs)
    grad_logits[0].sub_(probs[1], alpha=half)
    grad_logits[1].sub_(probs[0], alpha=half)
    grad_x, grad_weight, grad_bias = grads
    grad_x.copy_(grad_logits @ weight)
    grad_weight.addmm_(grad_logits.flatten(0, 1).T, x.flatten(0, 1))
    if grad_bias is not None:
        grad_bias.add_(grad_logits.sum(dim=(0, 1)))
    return lse[..., 0], kl.sum() / 2
