"""Sampling of one next token: each rule takes logits and sets those of excluded tokens to -inf.

p is always softmax(logits). `draw` samples a token. See docs/explanation/decoding.md, "Sampling".
"""

import math

import torch
from torch import Tensor

from qkv.textbook.attention import softmax

__all__ = [
    "draw", "fewest_reaching", "keep", "min_p",
    "repetition_penalty", "temperature", "top_k", "top_p",
    "typical_p",
]


def temperature(logits: Tensor, t: float) -> Tensor:
    """logits / t: below 1 the distribution is sharper, above 1 flatter; t -> 0 is greedy."""
    return logits / t


def top_k(logits: Tensor, k: int) -> Tensor:
    """Top-k: keep tokens with a logit >= the k-th largest (ties of the k-th are kept).

    >>> top_k(torch.tensor([1.0, 3.0, 2.0, 0.0]), k=2)
    tensor([-inf, 3., 2., -inf])
    """
    kth_largest = logits.sort(descending=True).values[min(k, len(logits)) - 1]
    return keep(logits, logits >= kth_largest)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Nucleus sampling: keep the fewest most likely tokens whose probabilities sum to at least p.

    >>> top_p(torch.tensor([0.5, 0.2, 0.3]).log(), p=0.6).exp()
    tensor([0.5000, 0.0000, 0.3000])
    """
    probs = softmax(logits)
    return keep(logits, fewest_reaching(p, probs, order=(-probs).argsort(stable=True)))


def min_p(logits: Tensor, p: float) -> Tensor:
    """Min-p: keep tokens with probability >= p times the maximum.

    >>> min_p(torch.tensor([0.5, 0.2, 0.3]).log(), p=0.5).exp()
    tensor([0.5000, 0.0000, 0.3000])
    """
    probs = softmax(logits)
    return keep(logits, probs >= p * probs.max())


def typical_p(logits: Tensor, p: float) -> Tensor:
    """Typical sampling: keep the fewest most typical tokens with probabilities of at least p.

    A token is typical if its information -log p_i is near the entropy H = - sum_i p_i log p_i.
    """
    probs = softmax(logits)
    nonzero = probs > 0
    information = -probs.log()                              # infinite where the probability is 0
    entropy = (probs * information)[nonzero].sum()
    order = (information - entropy).abs().argsort(stable=True)
    return keep(logits, nonzero & fewest_reaching(p, probs, order))


def repetition_penalty(logits: Tensor, seen: list[int], penalty: float) -> Tensor:
    """Divide positive logits of tokens already seen by the penalty, multiply negative ones by it.

    >>> repetition_penalty(torch.tensor([2.0, -2.0, 1.0]), seen=[0, 1, 0], penalty=2.0)
    tensor([ 1., -4.,  1.])
    """
    logits = logits.clone()
    for token in set(seen):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return logits


def draw(logits: Tensor, uniform: float) -> int:
    """Inverse transform sampling: the first token whose cumulative probability exceeds `uniform`.

    >>> [draw(torch.tensor([0.5, 0.0, 0.5]).log(), uniform) for uniform in (0.0, 0.49, 0.51, 0.99)]
    [0, 0, 2, 2]
    """
    probs = softmax(logits)
    cumulative = 0.0
    for token, prob in enumerate(probs.tolist()):
        cumulative += prob
        if uniform < cumulative:
            return token
    return int(probs.nonzero()[-1])                         # rounding: the sum is just below one


def fewest_reaching(p: float, probs: Tensor, order: Tensor) -> Tensor:
    """True for the first tokens in this order until their probabilities reach p; at least one."""
    selected = torch.zeros_like(probs, dtype=torch.bool)
    total = 0.0
    for token in order.tolist():
        selected[token] = True
        total += probs[token].item()
        if total >= p:
            break
    return selected


def keep(logits: Tensor, selected: Tensor) -> Tensor:
    """-inf for every token that is not selected."""
    return logits.masked_fill(~selected, -math.inf)
