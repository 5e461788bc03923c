"""argmax, top-k over the live rows of beam search, and log-sum-exp, faster than torch's own.

Scores are read in blocks: only the blocks with the largest maxima are searched. topk.cpp does this
in one pass; without the native library torch operations find the maxima first. Of equal scores the
lower index comes first. No gradient. See docs/guides/translation.md.
"""

import ctypes as c
from functools import lru_cache

import torch
from torch import Tensor

from qkv.kernels import build
from qkv.threads import inference_threads_for

BLOCK = 64  # scores; measured: argmax of 32 rows of 10,000 takes 500 us, in blocks 80 us
VECTOR_ELEMENTS = 16  # of a vector register
MIN_ROWS_FOR_BLOCKS = 2  # with fewer, blocks are slower
MIN_BLOCKS_PER_TOKEN = 4  # blocks of a row for each of the top-k tokens: the same
MIN_SCORES_FOR_THREADS = 1 << 17  # with fewer, one thread is faster


def best_token(scores: Tensor) -> Tensor:
    """argmax of each row, (rows, vocab) -> (rows,); of equal scores the lowest id."""
    rows, vocab = scores.shape
    if (lib := _library(scores)) is not None:
        return _native_topk(lib, scores, None, rows, 1)[1][:, 0]
    if rows < MIN_ROWS_FOR_BLOCKS or vocab < MIN_BLOCKS_PER_TOKEN * BLOCK:
        return scores.argmax(dim=1)
    end = vocab // BLOCK * BLOCK
    blocks = scores[:, :end].unflatten(1, (-1, BLOCK))  # (rows, blocks, BLOCK), no copy
    maxima = blocks.amax(dim=2)  # (rows, blocks)
    block = maxima.argmax(dim=1)  # (rows,): the first of equal ones
    row = torch.arange(rows, device=scores.device)
    ids, best = block * BLOCK + blocks[row, block].argmax(dim=1), maxima[row, block]
    if end < vocab:  # an incomplete block
        tail_best, tail_index = scores[:, end:].max(dim=1)
        ids = torch.where(tail_best > best, end + tail_index, ids)
    return ids


def topk_candidates(scores: Tensor, shift: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The top n candidates of each sentence over its live rows: one step of beam search.

    Args:
        scores: (sentences * live, vocab), contiguous.
        shift: (sentences, live), added to all scores of a row.
        n: Candidates per sentence.

    Returns:
        The live row, the token and the sum, each (sentences, n), best first; of equal sums the
        lower row, then the lower token.
    """
    (sentences, live), vocab = shift.shape, scores.shape[1]
    n = min(n, live * vocab)
    if (lib := _library(scores)) is not None:
        best, index = _native_topk(lib, scores, shift.contiguous(), sentences, n)
        return index // vocab, index % vocab, best
    best, index = _torch_topk(scores, shift, min(n + 1, live * vocab))
    tied = (best[:, 1:] == best[:, :-1]).any(dim=1)  # whose order topk does not define
    if bool(tied.any()):
        sums = (scores.view(sentences, live, vocab)[tied] + shift[tied][..., None]).flatten(1)
        ranked = sums.sort(dim=1, descending=True, stable=True)
        best[tied] = ranked.values[:, : best.shape[1]]
        index[tied] = ranked.indices[:, : best.shape[1]]
    best, index = best[:, :n], index[:, :n]
    return index // vocab, index % vocab, best


def log_sum_exp(scores: Tensor) -> Tensor:
    """log(sum(exp(scores))) of each row, (rows, vocab) -> (rows,)."""
    if (lib := _library(scores)) is not None:
        out = scores.new_empty(scores.shape[0])
        threads = inference_threads_for(scores.numel(), MIN_SCORES_FOR_THREADS)
        lib.qkv_log_sum_exp(scores.data_ptr(), *scores.shape, threads, out.data_ptr())
        return out
    total = scores.exp().sum(dim=1)
    if bool(((total > 1e-30) & (total < 1e30)).all()):
        return total.log()  # no overflow, no underflow: the maximum is not needed
    return scores.logsumexp(dim=1)


# ── By topk.cpp ──────────────────────────────────────────────────────────────────────────────────
def _library(scores: Tensor) -> c.CDLL | None:
    """The native library, if it supports these scores and has been built."""
    if scores.device.type != "cpu" or scores.dtype not in build.NATIVE_DTYPES:
        return None
    return build.library(scores.dtype) if scores.is_contiguous() else None


def _native_topk(
    lib: c.CDLL, scores: Tensor, shift: Tensor | None, sentences: int, n: int
) -> tuple[Tensor, Tensor]:
    """The n best sums of each sentence and their indices, live row * vocab + token."""
    rows, vocab = scores.shape
    best, index = scores.new_empty(sentences, n), torch.empty(sentences, n, dtype=torch.long)
    assert shift is None or shift.dtype == scores.dtype
    lib.qkv_topk(
        scores.data_ptr(),
        None if shift is None else shift.data_ptr(),
        sentences,
        rows // max(1, sentences),  # live rows of a sentence
        vocab,
        n,
        inference_threads_for(scores.numel(), MIN_SCORES_FOR_THREADS),
        best.data_ptr(),
        index.data_ptr(),
    )
    return best, index


# ── By torch ─────────────────────────────────────────────────────────────────────────────────────
def _torch_topk(scores: Tensor, shift: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The n best sums of each sentence and their indices, equal sums in any order."""
    (sentences, live), vocab = shift.shape, scores.shape[1]
    size = block_size(vocab)
    if len(scores) < MIN_ROWS_FOR_BLOCKS or vocab < MIN_BLOCKS_PER_TOKEN * size * n:
        return (scores.view(sentences, live, vocab) + shift[..., None]).flatten(1).topk(n, dim=1)
    blocks = scores.view(sentences, live, -1, size)  # a row is a whole number of blocks
    maxima = (blocks.amax(dim=3) + shift[..., None]).flatten(1)  # (sentences, live * blocks)
    chosen = maxima.topk(n, dim=1).indices  # only these blocks can contain one of the n best
    chosen_shift = shift.gather(1, chosen // (vocab // size))  # (sentences, n)
    chosen_blocks = blocks.flatten(1, 2).gather(1, chosen[..., None].expand(-1, -1, size))
    best, order = (chosen_blocks + chosen_shift[..., None]).flatten(1).topk(n, dim=1)
    return best, chosen.gather(1, order // size) * size + order % size


@lru_cache
def block_size(vocab: int) -> int:
    """The divisor of vocab nearest to BLOCK, a multiple of VECTOR_ELEMENTS if there is one."""
    divisors = [size for size in range(1, vocab + 1) if vocab % size == 0]
    fitting = [size for size in divisors if size >= VECTOR_ELEMENTS or size == vocab]
    return min(fitting, key=lambda size: (size % VECTOR_ELEMENTS > 0, abs(size - BLOCK)))
