"""Sampling: the logits of one next token in, logits of the tokens that stay in the draw out (the others get -inf).

Each rule is its definition and nothing else; p is always softmax(logits). `draw` then picks a token.
Told in docs/generation.md, "Sampling".
"""

import math

import torch
from torch import Tensor

from qkv.textbook.attention import softmax


def temperature(logits: Tensor, t: float) -> Tensor:
    """logits / t: below 1 the likely get likelier, above 1 the draw gets more even; towards 0 it becomes greedy."""
    return logits / t


def top_k(logits: Tensor, k: int) -> Tensor:
    """Only tokens at least as good as the k-th best stay (equals of the k-th stay too).

    >>> top_k(torch.tensor([1.0, 3.0, 2.0, 0.0]), k=2)
    tensor([-inf, 3., 2., -inf])
    """
    kth_best = logits.sort(descending=True).values[min(k, len(logits)) - 1]
    return keep(logits, logits >= kth_best)


def top_p(logits: Tensor, p: float) -> Tensor:
    """Only the nucleus stays: the fewest most likely tokens whose probabilities reach p together.

    >>> top_p(torch.tensor([0.5, 0.2, 0.3]).log(), p=0.6).exp()
    tensor([0.5000, 0.0000, 0.3000])
    """
    chances = softmax(logits)
    return keep(logits, fewest_reaching(p, chances, order=(-chances).argsort(stable=True)))


def min_p(logits: Tensor, p: float) -> Tensor:
    """Only tokens at least p times as likely as the likeliest stay.

    >>> min_p(torch.tensor([0.5, 0.2, 0.3]).log(), p=0.5).exp()
    tensor([0.5000, 0.0000, 0.3000])
    """
    chances = softmax(logits)
    return keep(logits, chances >= p * chances.max())


def typical(logits: Tensor, p: float) -> Tensor:
    """Only the fewest most typical tokens stay whose probabilities reach p together.

    A token is typical when its surprise -log p_i is near the mean surprise H = - sum_i p_i log p_i.
    """
    chances = softmax(logits)
    possible = chances > 0
    surprise = -chances.log()                               # infinite for impossible tokens, which are never typical
    entropy = (chances * surprise)[possible].sum()
    return keep(logits, possible & fewest_reaching(p, chances, order=(surprise - entropy).abs().argsort(stable=True)))


def repetition_penalty(logits: Tensor, seen: list[int], penalty: float) -> Tensor:
    """Tokens already seen get less likely: a positive logit is divided by the penalty, a negative one multiplied.

    >>> repetition_penalty(torch.tensor([2.0, -2.0, 1.0]), seen=[0, 1, 0], penalty=2.0)
    tensor([ 1., -4.,  1.])
    """
    logits = logits.clone()
    for token in set(seen):
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    return logits


def draw(logits: Tensor, chance: float) -> int:
    """The token in whose share of the line from 0 to 1 the number `chance` falls, shares in order of the ids.

    >>> [draw(torch.tensor([0.5, 0.0, 0.5]).log(), chance) for chance in (0.0, 0.49, 0.51, 0.99)]
    [0, 0, 2, 2]
    """
    chances = softmax(logits)
    before = 0.0
    for token, share in enumerate(chances.tolist()):
        before += share
        if chance < before:
            return token
    return int(chances.nonzero()[-1])                       # the shares summed to a hair under one


def fewest_reaching(p: float, chances: Tensor, order: Tensor) -> Tensor:
    """True for the first tokens in this order, as many as it takes for their probabilities to reach p; at least one."""
    chosen = torch.zeros_like(chances, dtype=torch.bool)
    reached = 0.0
    for token in order.tolist():
        chosen[token] = True
        reached += chances[token].item()
        if reached >= p:
            break
    return chosen


def keep(logits: Tensor, chosen: Tensor) -> Tensor:
    """-inf for every token that was not chosen."""
    return logits.masked_fill(~chosen, -math.inf)
