"""The best tokens of a row of scores, found quickly.

In: scores (rows, vocab). Out: the best and their ids. A row is first looked at in blocks: the largest number of each block
is found by a vectorised pass, and only the best blocks are searched. Told in docs/translation.md, "Decoding".
"""

from functools import lru_cache

import torch
from torch import Tensor

from qkv.kernels.native_topk import can_choose, native_best_sums, native_best_token, native_log_sum

BLOCK = 64      # measured: 32 rows of 10,000 scores, argmax 500 us whole, 80 us in blocks
VECTOR = 16     # numbers the processor takes at once
FEW_ROWS = 2    # below, the blocks cost more than they save
FEW_BLOCKS = 4  # per token wanted; in smaller vocabularies too


def best_token(scores: Tensor) -> Tensor:
    """The id of the best of each row, (rows,); of equals the lowest."""
    rows, vocab = scores.shape
    if can_choose(scores):
        return native_best_token(scores)
    if rows < FEW_ROWS or vocab < FEW_BLOCKS * BLOCK:
        return scores.argmax(dim=1)
    blocks, tail = in_blocks(scores)
    peaks = blocks.amax(dim=2)                                            # (rows, blocks)
    block = peaks.argmax(dim=1)                                           # (rows,): the first of equal ones
    each = torch.arange(rows, device=scores.device)
    ids, best = block * BLOCK + blocks[each, block].argmax(dim=1), peaks[each, block]
    if tail.shape[1]:
        in_tail, place = tail.max(dim=1)
        ids = torch.where(in_tail > best, vocab - tail.shape[1] + place, ids)
    return ids


def best_sums(scores: Tensor, shift: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n best scores (rows, vocab) of each sentence, its rows shifted by `shift` (sentences, live), best first.

    Gives the live row, the token and the sum, each (sentences, n); of equals the lower row wins, then the lower token.
    """
    (sentences, live), vocab = shift.shape, scores.shape[1]
    n = min(n, live * vocab)
    if can_choose(scores):
        return native_best_sums(scores, shift, n)
    best, place = _top(scores, shift, min(n + 1, live * vocab))           # a place is live row * vocab + token
    unsure = (best[:, 1:] == best[:, :-1]).any(dim=1)                     # topk does not say which of equals comes first
    if bool(unsure.any()):
        sums = (scores.view(sentences, live, vocab)[unsure] + shift[unsure][..., None]).flatten(1)
        ranked = sums.sort(dim=1, descending=True, stable=True)
        best[unsure], place[unsure] = ranked.values[:, : best.shape[1]], ranked.indices[:, : best.shape[1]]
    best, place = best[:, :n], place[:, :n]
    return place // vocab, place % vocab, best


def log_sum(scores: Tensor) -> Tensor:
    """log(sum(exp(scores))) of each row, (rows,); without looking for the largest first where the plain sum is fine."""
    if can_choose(scores):
        return native_log_sum(scores)
    total = scores.exp().sum(dim=1)
    if bool(((total > 1e-30) & (total < 1e30)).all()):
        return total.log()
    return scores.logsumexp(dim=1)


def in_blocks(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Whole blocks (rows, blocks, BLOCK) and the few scores left over, without a copy."""
    end = scores.shape[1] // BLOCK * BLOCK
    return scores[:, :end].unflatten(1, (-1, BLOCK)), scores[:, end:]


def _top(scores: Tensor, shift: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n best sums of each sentence and their places, equals in any order."""
    (sentences, live), vocab = shift.shape, scores.shape[1]
    size = divisor(vocab)
    if len(scores) < FEW_ROWS or vocab < FEW_BLOCKS * size * n:
        return (scores.view(sentences, live, vocab) + shift[..., None]).flatten(1).topk(n, dim=1)
    blocks = scores.view(sentences, live, -1, size)                                  # a row is a whole number of blocks
    chosen = (blocks.amax(dim=3) + shift[..., None]).flatten(1).topk(n, dim=1).indices  # none of the best is elsewhere
    few = blocks.flatten(1, 2).gather(1, chosen[..., None].expand(-1, -1, size))     # (sentences, n, size)
    best, order = (few + shift.gather(1, chosen // (vocab // size))[..., None]).flatten(1).topk(n, dim=1)
    return best, chosen.gather(1, order // size) * size + order % size


@lru_cache
def divisor(vocab: int) -> int:
    """How many scores make a block, a divisor of all: of whole vectors if it can be, then near BLOCK; a prime is one block."""
    fit = [size for size in range(1, vocab + 1) if vocab % size == 0 and (size >= VECTOR or size == vocab)]
    return min(fit, key=lambda size: (size % VECTOR > 0, abs(size - BLOCK)))
