"""Losses in nats: cross-entropy with label smoothing (section 5.4 of the paper), R-Drop, InfoNCE.

See docs/explanation/model.md, "Output head and loss".
"""

import math

import torch
from torch import Tensor

__all__ = [
    "contrastive", "cross_entropy", "kl_divergence", "log_softmax",
    "perplexity", "r_drop_loss", "smooth_labels", "unit",
]


def log_softmax(logits: Tensor) -> Tensor:
    """x_i - log sum_j e^x_j, with the maximum subtracted first to avoid overflow."""
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


def smooth_labels(targets: Tensor, n_classes: int, smoothing: float) -> Tensor:
    """Label smoothing: (1 - eps) one_hot + eps / C.

    >>> smooth_labels(torch.tensor([1]), n_classes=4, smoothing=0.1).tolist()
    [[0.025, 0.925, 0.025, 0.025]]
    """
    classes = torch.arange(n_classes, device=targets.device)
    one_hot = (targets[..., None] == classes).double()      # (..., classes)
    return (1 - smoothing) * one_hot + smoothing / n_classes


def cross_entropy(
    logits: Tensor, targets: Tensor, pad_id: int | None = None, smoothing: float = 0.0
) -> Tensor:
    """- sum_i y_i log p_i, the mean over all tokens that are not padding."""
    labels = smooth_labels(targets, logits.shape[-1], smoothing).to(logits)     # (..., vocab_size)
    losses = -(labels * log_softmax(logits)).sum(dim=-1)    # (...), one for each token
    mask = torch.ones_like(targets, dtype=torch.bool) if pad_id is None else targets != pad_id
    return losses[mask].sum() / mask.sum().clamp(min=1)     # 0 if all targets are padding


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) = sum_i p_i log(p_i / q_i), the mean over all tokens."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1).mean()


def r_drop_loss(
    first: Tensor, second: Tensor, targets: Tensor, weight: float, smoothing: float = 0.0
) -> Tensor:
    """R-Drop: cross-entropy of two passes with different dropout, and their KL divergence.

    loss = 1/2 [CE_1 + CE_2 + weight (KL(p || q) + KL(q || p)) / 2]; logits (tokens, vocab_size).
    """
    log_p, log_q = log_softmax(first), log_softmax(second)
    divergence = (kl_divergence(log_p, log_q) + kl_divergence(log_q, log_p)) / 2
    first_loss = cross_entropy(first, targets, smoothing=smoothing)
    second_loss = cross_entropy(second, targets, smoothing=smoothing)
    return (first_loss + second_loss + weight * divergence) / 2


def perplexity(loss: float) -> float:
    """e^loss: the number of equally likely tokens with the same cross-entropy.

    >>> round(perplexity(math.log(50)), 6)
    50.0
    """
    return math.exp(loss)


def contrastive(a: Tensor, b: Tensor, temperature: float = 0.05) -> Tensor:
    """Symmetric InfoNCE with in-batch negatives: b_i is the positive of a_i, and the reverse.

    loss = -1/2 mean_i [log softmax_j(cos(a_i, b_j) / t)_i + log softmax_j(cos(b_i, a_j) / t)_i]
    """
    similarity = unit(a) @ unit(b).T / temperature          # (sentences, sentences)
    positives = torch.arange(len(a), device=a.device)       # on the diagonal
    return (cross_entropy(similarity, positives) + cross_entropy(similarity.T, positives)) / 2


def unit(x: Tensor) -> Tensor:
    """Vectors divided by their length, so that a dot product is a cosine."""
    return x / x.norm(dim=-1, keepdim=True)
