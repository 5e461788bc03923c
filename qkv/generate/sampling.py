"""Sampling: from the logits of the next token to a token id, for all rows of a batch.

Each rule maps logits (rows, vocab) to logits, -inf for tokens that it removes; the definitions are
those of textbook/sampling.py. See docs/explanation/decoding.md, "Sampling".
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.generate.config import GenerationConfig
from qkv.kernels.topk import BLOCK, best_token

NUCLEUS_CANDIDATES = (256, 2_048)  # tokens that top-p tries before it sorts the whole vocabulary
MAX_FLAT_CUMSUM_VOCAB = 16 * BLOCK  # above, the cumulative sum is taken over blocks first
DRAWS_PER_BLOCK = 256  # random numbers generated at a time


def sample(
    logits: Tensor, config: GenerationConfig, seen: Tensor | None, uniforms: Tensor | None
) -> Tensor:
    """The next token of each row, (rows,): apply all rules in order, then argmax or sample.

    Args:
        logits: (rows, vocab).
        config: The sampling rules; temperature 0 is argmax.
        seen: (rows, vocab), tokens that the repetition penalty applies to; None: no penalty.
        uniforms: (rows,), random numbers in [0, 1); None is allowed at temperature 0.
    """
    if seen is not None:
        logits = apply_repetition_penalty(logits, seen, config.repetition_penalty)
    if config.suppress_tokens:
        logits = suppress(logits, config.suppress_tokens)
    if config.allowed_token_ids:
        logits = restrict_to(logits, config.allowed_token_ids)
    if config.temperature == 0:
        return best_token(logits)
    assert uniforms is not None, "sampling needs random numbers"
    logits = apply_temperature(logits, config.temperature)
    ids = top_k_ids(logits, config.top_k)  # (rows, k), in order of the ids
    if ids is None:
        return draw(apply_filters(logits, config), uniforms)
    drawn = draw(apply_filters(logits.gather(1, ids), config), uniforms)
    return ids.gather(1, drawn[:, None])[:, 0]


def apply_filters(logits: Tensor, config: GenerationConfig) -> Tensor:
    """The rules that remove tokens: top-k, top-p, min-p, typical."""
    if config.top_k is not None:
        logits = top_k(logits, config.top_k)
    if config.top_p is not None:
        logits = top_p(logits, config.top_p)
    if config.min_p is not None:
        logits = min_p(logits, config.min_p)
    if config.typical_p is not None:
        logits = typical_p(logits, config.typical_p)
    return logits


def top_k_ids(logits: Tensor, k: int | None) -> Tensor | None:
    """The top k tokens of each row, (rows, k), if top-k keeps exactly these; else None.

    The later rules then need not process the whole vocabulary.
    """
    if k is None or k >= logits.shape[1]:
        return None
    best, ids = logits.topk(k + 1, dim=1)  # (rows, k + 1), best first
    if bool((best[:, -1] == best[:, -2]).any()):  # logits equal to the k-th are kept too
        return None
    return ids[:, :k].sort(dim=1).values


# ── Rules ────────────────────────────────────────────────────────────────────────────────────────
def apply_repetition_penalty(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide the positive logits of `seen` tokens (rows, vocab) by the penalty, multiply others."""
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalized, logits)


def suppress(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Remove these tokens."""
    return logits.index_fill(1, torch.tensor(ids, device=logits.device), -math.inf)


def restrict_to(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Remove all tokens but these."""
    allowed = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    allowed[list(ids)] = True
    return mask_logits(logits, allowed)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature: below 1 the distribution gets sharper, above 1 flatter."""
    return logits if temperature == 1 else logits / temperature


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the tokens whose logit is at least the k-th largest."""
    best = logits.topk(min(k, logits.shape[1]), dim=1).values  # (rows, k), best first
    return mask_logits(logits, logits >= best[:, -1:])


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the nucleus: the smallest set of most likely tokens whose probabilities sum to >= p."""
    probs = logits.softmax(dim=1)
    ids = nucleus_candidates(probs, p)  # (rows, candidates), in order of the ids
    candidates = probs.gather(1, ids)
    kept = smallest_prefix(p, candidates, (-candidates).argsort(dim=1, stable=True))
    return mask_logits(logits, torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, kept))


def nucleus_candidates(probs: Tensor, p: float) -> Tensor:
    """Ids that contain the nucleus: the most likely ones, or all if those do not sum to p."""
    for size in NUCLEUS_CANDIDATES:
        if size < probs.shape[1]:
            best, ids = probs.topk(size, dim=1)  # (rows, size), best first
            # Not counted: tokens equal to the last one, others of which may be missing.
            total = best.where(best > best[:, -1:], 0.0).sum(dim=1)
            if bool((total > p).all()):
                return ids.sort(dim=1).values
    return torch.arange(probs.shape[1], device=probs.device).expand_as(probs)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens with probability >= p x the maximum."""
    probs = logits.softmax(dim=1)
    return mask_logits(logits, probs >= p * probs.amax(dim=1, keepdim=True))


def typical_p(logits: Tensor, p: float) -> Tensor:
    """Locally typical sampling: keep the tokens whose -log p is nearest to the entropy.

    The smallest such set whose probabilities sum to >= p.
    """
    log_probs = logits.log_softmax(dim=1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).nan_to_num(0.0).sum(dim=1, keepdim=True)  # 0 log 0 = 0
    order = (-log_probs - entropy).abs().argsort(dim=1, stable=True)
    return mask_logits(logits, smallest_prefix(p, probs, order) & (probs > 0))


def smallest_prefix(p: float, probs: Tensor, order: Tensor) -> Tensor:
    """True for the shortest prefix of `order` whose probabilities sum to >= p; at least one."""
    sums = probs.gather(1, order).cumsum(dim=1, dtype=sum_dtype(probs.device))  # (rows, vocab)
    before = torch.cat([torch.zeros_like(sums[:, :1]), sums[:, :-1]], dim=1)
    kept = before < p
    kept[:, 0] = True
    return torch.empty_like(kept).scatter_(1, order, kept)


def mask_logits(logits: Tensor, kept: Tensor) -> Tensor:
    """-inf for every token that is not kept."""
    return logits.masked_fill(~kept, -math.inf)


# ── Drawing a token ──────────────────────────────────────────────────────────────────────────────
def draw(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Inverse transform sampling: the token at which the cumulative probability exceeds `uniforms`.

    For large vocabularies the block is found first, then the token in it.
    """
    probs = logits.softmax(dim=1)  # (rows, vocab)
    if probs.shape[1] <= MAX_FLAT_CUMSUM_VOCAB:
        return inverse_cdf(probs, uniforms)[0]
    blocks = F.pad(probs, (0, -probs.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    block_probs = blocks.sum(dim=2, dtype=sum_dtype(probs.device))  # (rows, blocks)
    block, remainder = inverse_cdf(block_probs, uniforms)
    row = torch.arange(len(blocks), device=blocks.device)
    return block * BLOCK + inverse_cdf(blocks[row, block], remainder)[0]


def inverse_cdf(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The entry whose interval contains `uniforms`, and where in it, 0 to 1; each (rows,)."""
    ends = probs.cumsum(dim=1, dtype=sum_dtype(probs.device))  # (rows, entries)
    total = ends[:, -1:]  # 1 up to rounding
    last = total.nextafter(torch.zeros_like(total))
    point = torch.minimum(uniforms[:, None].to(ends) * total, last)
    entry = torch.searchsorted(ends, point, right=True)  # never one of probability 0
    size = probs.gather(1, entry)
    return entry[:, 0], (1 - (ends.gather(1, entry) - point) / size)[:, 0]


class Draws:
    """Uniform random numbers in [0, 1) for each of `n` sequences of a prompt.

    A number is a function of (seed, sequence, position) only, so that sampling is batch-invariant
    and the `n` sequences of a prompt differ.
    """

    def __init__(self, seed: int, n: int, device: torch.device):
        self.generators = [
            np.random.PCG64(np.random.SeedSequence([seed, index])) for index in range(n)
        ]
        self.used, self.block = 0, torch.empty(n, 0, dtype=sum_dtype(device), device=device)

    def next(self) -> Tensor:
        """The next number of each sequence, (n,)."""
        uniforms = self.peek(0)
        self.used += 1
        return uniforms

    def peek(self, offset: int) -> Tensor:
        """The number `offset` positions after the next one, without consuming any."""
        if self.used + offset >= self.block.shape[1]:
            # Raw bits only: numpy guarantees that these are the same in every version.
            raw = np.stack([generator.random_raw(DRAWS_PER_BLOCK) for generator in self.generators])
            more = torch.from_numpy((raw >> 11) * 2.0**-53).to(self.block)
            self.block, self.used = torch.cat([self.block[:, self.used :], more], dim=1), 0
        return self.block[:, self.used + offset]


def sum_dtype(device: torch.device) -> torch.dtype:
    """Sums over a whole vocabulary are computed in float64 where the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64
