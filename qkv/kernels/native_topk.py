"""The choice of the best tokens by the native library.

In: scores (rows, vocab). Out: what best.py finds by torch's operations, in one pass over the scores. Told in
docs/performance.md, "The native library".
"""

import torch
from torch import Tensor

from qkv.kernels.build import library
from qkv.kernels.calling import address, can_be_native, inference_threads_for

MUCH = 1 << 17  # scores that keep a second thread busy


def can_choose(scores: Tensor) -> bool:
    return can_be_native(scores) and scores.is_contiguous()


def native_best_token(scores: Tensor) -> Tensor:
    """The id of the best of each row, (rows,); of equals the lowest."""
    (rows, vocab), lib = scores.shape, library(scores.dtype)
    assert lib is not None
    best, ids = scores.new_empty(rows), torch.empty(rows, dtype=torch.long)
    lib.qkv_best(address(scores), None, rows, 1, vocab, 1, inference_threads_for(scores.numel(), MUCH), address(best), address(ids))
    return ids


def native_best_sums(scores: Tensor, shift: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The n best sums of each sentence: the live row, the token, the sum; of equals the lower row, then the lower token."""
    (sentences, live), vocab, lib = shift.shape, scores.shape[1], library(scores.dtype)
    assert lib is not None and n <= live * vocab
    best, place = scores.new_empty(sentences, n), torch.empty(sentences, n, dtype=torch.long)
    threads = inference_threads_for(scores.numel(), MUCH)
    lib.qkv_best(address(scores), address(shift.contiguous(), scores.dtype), sentences, live, vocab, n, threads, address(best), address(place))
    return place // vocab, place % vocab, best


def native_log_sum(scores: Tensor) -> Tensor:
    """log(sum(exp(scores))) of each row, (rows,)."""
    lib, sums = library(scores.dtype), scores.new_empty(len(scores))
    assert lib is not None
    lib.qkv_log_sums(address(scores), *scores.shape, inference_threads_for(scores.numel(), MUCH), address(sums))
    return sums
