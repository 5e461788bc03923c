"""From the scores of the next token to the token.

In: logits (rows, vocab). Out: one id a row. Each rule takes logits and gives logits, -inf for what leaves the draw; the
definitions are those of textbook/sampling.py, here for all rows at once. Told in docs/generation.md, "Sampling".
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from qkv.generate.best import best_token
from qkv.generate.settings import Sampling

BLOCK = 256  # chances drawn at a time


def choose(logits: Tensor, sampling: Sampling, seen: Tensor | None, chances: Tensor) -> Tensor:
    """The next token of each row, (rows,): all rules in their order, then the likeliest or a draw."""
    if seen is not None:
        logits = penalise(logits, seen, sampling.repetition_penalty)
    if sampling.banned:
        logits = ban(logits, sampling.banned)
    if sampling.forced:
        logits = force(logits, sampling.forced)
    if sampling.temperature == 0:
        return best_token(logits)
    return draw(narrow(logits, sampling), chances)


def narrow(logits: Tensor, sampling: Sampling) -> Tensor:
    """The rules that shape the draw."""
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = min_p(logits, sampling.min_p)
    if sampling.typical is not None:
        logits = typical(logits, sampling.typical)
    return logits


# ── The rules ────────────────────────────────────────────────────────────────────────────────────────────────────
def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Tokens in `seen` (rows, vocab) get less likely: positive logits are divided by the penalty, others multiplied."""
    weaker = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, weaker, logits)


def ban(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """These tokens are never said."""
    return logits.index_fill(1, torch.tensor(ids, device=logits.device), -math.inf)


def force(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Only these tokens may be said; a single one is certain."""
    allowed = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    allowed[list(ids)] = True
    return keep(logits, allowed)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Only tokens at least as good as the k-th best stay."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).values                # (rows, k), best first
    return keep(logits, logits >= best[:, -1:])


def top_p(logits: Tensor, p: float) -> Tensor:
    """Only the nucleus stays: the fewest most likely tokens whose probabilities reach p together."""
    chances = logits.softmax(dim=1)
    return keep(logits, fewest_reaching(p, chances, (-chances).argsort(dim=1, stable=True)))


def min_p(logits: Tensor, p: float) -> Tensor:
    """Only tokens at least p times as likely as the likeliest stay."""
    chances = logits.softmax(dim=1)
    return keep(logits, chances >= p * chances.amax(dim=1, keepdim=True))


def typical(logits: Tensor, p: float) -> Tensor:
    """Only the fewest tokens stay, those whose surprise is nearest to the mean surprise, that reach p together."""
    log_chances = logits.log_softmax(dim=1)
    chances = log_chances.exp()
    entropy = -(chances * log_chances).nan_to_num(0.0).sum(dim=1, keepdim=True)  # 0 log 0 = 0
    order = (-log_chances - entropy).abs().argsort(dim=1, stable=True)
    return keep(logits, fewest_reaching(p, chances, order) & (chances > 0))


def fewest_reaching(p: float, chances: Tensor, order: Tensor) -> Tensor:
    """True for the first tokens in this order, as many as it takes for their probabilities to reach p; at least one."""
    sums = chances.gather(1, order).cumsum(dim=1, dtype=widest(chances))      # (rows, vocab)
    before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=1)
    chosen = before < p
    chosen[:, 0] = True
    return torch.empty_like(chosen).scatter_(1, order, chosen)


def keep(logits: Tensor, chosen: Tensor) -> Tensor:
    """-inf for every token that was not chosen."""
    return logits.masked_fill(~chosen, -math.inf)


# ── The draw ─────────────────────────────────────────────────────────────────────────────────────────────────────
def draw(logits: Tensor, chances: Tensor) -> Tensor:
    """The token in whose share of the line from 0 to 1 the row's chance falls, shares in order of the ids."""
    ends = logits.softmax(dim=1).cumsum(dim=1, dtype=widest(logits))          # (rows, vocab): where each share ends
    whole = ends[:, -1:]                                                      # one, or a hair beside it
    point = torch.minimum(chances[:, None].to(ends) * whole, whole.nextafter(torch.zeros_like(whole)))
    return torch.searchsorted(ends, point, right=True)[:, 0]


class Draws:
    """Numbers between 0 and 1, a row of them for each of `n` texts: a function of (seed, text, place) and nothing else.

    So a text is the same alone and in any company, and each of the n texts of a prompt is another one.
    """

    def __init__(self, seed: int, n: int, device: torch.device):
        self.sources = [np.random.PCG64(np.random.SeedSequence([seed, index])) for index in range(n)]
        self.device, self.used, self.block = device, BLOCK, torch.empty(0)

    def next(self) -> Tensor:
        """One number for each text, (n,)."""
        if self.used == BLOCK:
            # Raw bits only: numpy promises that these stay the same in every version.
            raw = np.stack([source.random_raw(BLOCK) for source in self.sources])
            self.block = torch.from_numpy((raw >> 11) * 2.0**-53).to(self.device, widest_of(self.device))
            self.used = 0
        self.used += 1
        return self.block[:, self.used - 1]


def widest(tensor: Tensor) -> torch.dtype:
    """Sums over a whole vocabulary are made in float64 where the device has it."""
    return widest_of(tensor.device)


def widest_of(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
