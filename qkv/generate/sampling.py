"""From the scores of the next token to the token.

In: logits (rows, vocab). Out: one id a row. Each rule takes logits and gives logits, -inf for what leaves the draw; the
definitions are those of textbook/sampling.py, here for all rows at once. Told in docs/generation.md, "Sampling".
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.generate.config import GenerationConfig
from qkv.kernels.topk import BLOCK, best_token

NUCLEUS = (256, 2_048)  # so many tokens top-p looks at before it sorts a whole vocabulary
LARGE = 16 * BLOCK  # a vocabulary in which a running sum over all tokens is slow
AHEAD = 256  # chances drawn at a time


def choose(
    logits: Tensor, sampling: GenerationConfig, seen: Tensor | None, uniforms: Tensor | None
) -> Tensor:
    """The next token of each row, (rows,): all rules in their order, then the likeliest or a draw by `uniforms` (rows,)."""
    if seen is not None:
        logits = penalise(logits, seen, sampling.repetition_penalty)
    if sampling.banned:
        logits = ban(logits, sampling.banned)
    if sampling.forced:
        logits = force(logits, sampling.forced)
    if sampling.temperature == 0:
        return best_token(logits)
    assert uniforms is not None, "a draw needs random numbers"
    logits = heat(logits, sampling.temperature)
    ids = shortlist(logits, sampling.top_k)  # (rows, k), in order of the ids
    if ids is None:
        return draw(narrow(logits, sampling), uniforms)
    return ids.gather(1, draw(narrow(logits.gather(1, ids), sampling), uniforms)[:, None])[:, 0]


def narrow(logits: Tensor, sampling: GenerationConfig) -> Tensor:
    """The rules that take tokens out of the draw."""
    if sampling.top_k is not None:
        logits = top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = min_p(logits, sampling.min_p)
    if sampling.typical is not None:
        logits = typical(logits, sampling.typical)
    return logits


def shortlist(logits: Tensor, k: int | None) -> Tensor | None:
    """The k best tokens of each row, if top-k leaves just these: then the rules after it need not look at the others."""
    if k is None or k >= logits.shape[1]:
        return None
    best, ids = logits.topk(k + 1, dim=1)  # (rows, k + 1), best first
    if bool((best[:, -1] == best[:, -2]).any()):  # equals of the k-th best stay too
        return None
    return ids[:, :k].sort(dim=1).values


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


def heat(logits: Tensor, temperature: float) -> Tensor:
    """Below 1 the likely get likelier, above 1 the draw gets more even."""
    return logits if temperature == 1 else logits / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Only tokens at least as good as the k-th best stay."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).values  # (rows, k), best first
    return keep(logits, logits >= best[:, -1:])


def top_p(logits: Tensor, p: float) -> Tensor:
    """Only the nucleus stays: the fewest most likely tokens whose probabilities reach p together."""
    chances = logits.softmax(dim=1)
    ids = likeliest(chances, p)  # (rows, some), in order of the ids
    best = chances.gather(1, ids)
    chosen = fewest_reaching(p, best, (-best).argsort(dim=1, stable=True))
    return keep(logits, torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, chosen))


def likeliest(chances: Tensor, p: float) -> Tensor:
    """Tokens among which the nucleus surely is: the best few, or all of them if those do not reach p."""
    for size in NUCLEUS:
        if size < chances.shape[1]:
            best, ids = chances.topk(size, dim=1)  # (rows, size), best first
            surely = best.where(best > best[:, -1:], 0.0).sum(
                dim=1
            )  # equals of the last may be missing
            if bool((surely > p).all()):
                return ids.sort(dim=1).values
    return torch.arange(chances.shape[1], device=chances.device).expand_as(chances)


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
    sums = chances.gather(1, order).cumsum(dim=1, dtype=widest(chances))  # (rows, vocab)
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
    shares = logits.softmax(dim=1)  # (rows, vocab)
    if shares.shape[1] <= LARGE:
        return part_at(shares, chances)[0]
    blocks = F.pad(shares, (0, -shares.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    block, within = part_at(
        blocks.sum(dim=2, dtype=widest(shares)), chances
    )  # first the block, then the token in it
    each = torch.arange(len(blocks), device=blocks.device)
    return block * BLOCK + part_at(blocks[each, block], within)[0]


def part_at(shares: Tensor, chances: Tensor) -> tuple[Tensor, Tensor]:
    """The part of a line in which the chance falls, and where in that part, from 0 to 1; each (rows,)."""
    ends = shares.cumsum(dim=1, dtype=widest(shares))  # (rows, parts)
    whole = ends[:, -1:]  # one, or a hair beside it
    point = torch.minimum(
        chances[:, None].to(ends) * whole, whole.nextafter(torch.zeros_like(whole))
    )
    part = torch.searchsorted(ends, point, right=True)  # never one without a share
    size = shares.gather(1, part)
    return part[:, 0], (1 - (ends.gather(1, part) - point) / size)[:, 0]


class Draws:
    """Numbers between 0 and 1, a row of them for each of `n` texts: a function of (seed, text, place) and nothing else.

    So a text is the same alone and in any company, and each of the n texts of a prompt is another one.
    """

    def __init__(self, seed: int, n: int, device: torch.device):
        self.sources = [
            np.random.PCG64(np.random.SeedSequence([seed, index])) for index in range(n)
        ]
        self.used, self.block = 0, torch.empty(n, 0, dtype=widest_of(device), device=device)

    def next(self) -> Tensor:
        """One number for each text, (n,)."""
        chances = self.coming(0)
        self.used += 1
        return chances

    def coming(self, ahead: int) -> Tensor:
        """The number that comes after so many others, which all stay to be used."""
        if self.used + ahead >= self.block.shape[1]:
            # Raw bits only: numpy promises that these stay the same in every version.
            raw = np.stack([source.random_raw(AHEAD) for source in self.sources])
            more = torch.from_numpy((raw >> 11) * 2.0**-53).to(self.block)
            self.block, self.used = torch.cat([self.block[:, self.used :], more], dim=1), 0
        return self.block[:, self.used + ahead]


def widest(tensor: Tensor) -> torch.dtype:
    """Sums over a whole vocabulary are made in float64 where the device has it."""
    return widest_of(tensor.device)


def widest_of(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64
