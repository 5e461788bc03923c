"""Losses: what the model said and what was right in, one number to make smaller out.

Cross-entropy with label smoothing for tokens (section 5.4 of the paper), contrast for sentence vectors, in nats.
Told in docs/model.md, "The head and the loss".
"""

import math

import torch
from torch import Tensor


def log_softmax(logits: Tensor) -> Tensor:
    """Logits as log-probabilities: x_i - log sum_j e^x_j, with the highest taken out so that nothing overflows."""
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


def smooth_labels(targets: Tensor, n_classes: int, smoothing: float) -> Tensor:
    """One-hot rows made a little softer: (1 - eps) one_hot + eps / C.

    >>> smooth_labels(torch.tensor([1]), n_classes=4, smoothing=0.1).tolist()
    [[0.025, 0.925, 0.025, 0.025]]
    """
    classes = torch.arange(n_classes, device=targets.device)
    one_hot = (targets[..., None] == classes).double()      # (..., classes)
    return (1 - smoothing) * one_hot + smoothing / n_classes


def cross_entropy(logits: Tensor, targets: Tensor, pad_id: int | None = None, smoothing: float = 0.0) -> Tensor:
    """- sum_i y_i log p_i, the mean over all tokens that are not padding."""
    labels = smooth_labels(targets, logits.shape[-1], smoothing).to(logits)     # (..., vocab_size)
    losses = -(labels * log_softmax(logits)).sum(dim=-1)    # (...), one for each token
    real = torch.ones_like(targets, dtype=torch.bool) if pad_id is None else targets != pad_id
    return losses[real].sum() / real.sum().clamp(min=1)     # a batch of nothing but padding costs nothing


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) = sum_i p_i log(p_i / q_i), the mean over all tokens: how much p is surprised by q."""
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1).mean()


def agreeing(first: Tensor, second: Tensor, targets: Tensor, weight: float, smoothing: float = 0.0) -> Tensor:
    """R-Drop: two passes with other dropout, (tokens, vocab_size) each, should both be right and should agree.

    loss = 1/2 [CE_1 + CE_2 + weight (KL(p || q) + KL(q || p)) / 2]
    """
    log_p, log_q = log_softmax(first), log_softmax(second)
    apart = (divergence(log_p, log_q) + divergence(log_q, log_p)) / 2
    return (cross_entropy(first, targets, smoothing=smoothing) + cross_entropy(second, targets, smoothing=smoothing) + weight * apart) / 2


def perplexity(loss: float) -> float:
    """e^loss: between how many equally likely tokens the model hesitates on average.

    >>> round(perplexity(math.log(50)), 6)
    50.0
    """
    return math.exp(loss)


def contrastive(a: Tensor, b: Tensor, temperature: float = 0.05) -> Tensor:
    """InfoNCE, both ways: a_i must find b_i among all b by cosine, and b_i must find a_i among all a.

    loss = -1/2 mean_i [log softmax_j(cos(a_i, b_j) / t)_i + log softmax_j(cos(b_i, a_j) / t)_i]
    """
    similarity = unit(a) @ unit(b).T / temperature          # (sentences, sentences)
    own = torch.arange(len(a), device=a.device)             # the partner stands on the diagonal
    return (cross_entropy(similarity, own) + cross_entropy(similarity.T, own)) / 2


def unit(x: Tensor) -> Tensor:
    """Each vector divided by its length, so that a dot product is a cosine."""
    return x / x.norm(dim=-1, keepdim=True)
