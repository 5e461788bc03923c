"""Beam search for one sentence, without cache or batch.

Section 6.1 of the paper: beam size 4, alpha 0.6. qkv/generate/beam.py gives the same hypotheses.
See docs/explanation/decoding.md, "Beam search".
"""

import math
from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "Hypothesis", "beam_search", "best_extensions", "best_finished", "length_penalty", "score",
]


class Hypothesis(NamedTuple):
    """Tokens (with <eos> if finished, without <bos>) and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    log_prob: float


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha: compensates for the lower log-probability of longer sentences."""
    return ((5 + length) / 6) ** alpha


def score(hypothesis: Hypothesis, alpha: float) -> float:
    """log_prob / length_penalty, where the length counts all tokens, <eos> included."""
    return hypothesis.log_prob / length_penalty(len(hypothesis.ids), alpha)


def beam_search(
    next_log_probs: Callable[[tuple[int, ...]], list[float]],
    eos_id: int,
    max_len: int,
    beam_size: int = 4,
    alpha: float = 0.6,
) -> list[Hypothesis]:
    """At most beam_size finished hypotheses, best score first. The exact rules:

    1. Each step extends every live hypothesis by every token of the vocabulary. The best
       2 * beam_size by log_prob are the candidates; ties are ordered by the rank of their live
       hypothesis, then by token id. A log-probability of -inf is no candidate.
    2. Candidates that end in <eos> are finished if they are among the first beam_size, and dropped
       otherwise. The first beam_size candidates that do not end are the next live hypotheses, in
       the order of the candidates.
    3. Of the finished, the best beam_size by score are kept; of ties, the one found first.
    4. The search ends when beam_size are finished and no live one can have a better score than the
       worst of them. The upper bound of a live one's score is log_prob / length_penalty(max_len)
       (alpha is not negative). A beam of one is greedy search and ends with its first finished one.
    5. At max_len tokens the live ones are finished without <eos>, and rule 3 applies once more.
    """
    live, finished = [Hypothesis((), 0.0)], list[Hypothesis]()
    for _ in range(max_len):
        candidates = best_extensions(live, next_log_probs, 2 * beam_size)
        ended = [candidate for candidate in candidates[:beam_size] if candidate.ids[-1] == eos_id]
        live = [candidate for candidate in candidates if candidate.ids[-1] != eos_id][:beam_size]
        finished = best_finished(finished + ended, beam_size, alpha)
        bound = live[0].log_prob / length_penalty(max_len, alpha) if live else -math.inf
        full = len(finished) == beam_size
        if full and (beam_size == 1 or bound <= score(finished[-1], alpha)):
            return finished
    return best_finished(finished + live, beam_size, alpha)


def best_extensions(
    live: list[Hypothesis], next_log_probs: Callable[[tuple[int, ...]], list[float]], n: int
) -> list[Hypothesis]:
    """The n most likely extensions of the live hypotheses by one token."""
    extensions = [
        Hypothesis((*ids, token), log_prob + gain)
        for ids, log_prob in live
        for token, gain in enumerate(next_log_probs(ids))
        if gain > -math.inf
    ]
    return sorted(extensions, key=lambda extension: -extension.log_prob)[:n]    # a stable sort


def best_finished(finished: list[Hypothesis], n: int, alpha: float) -> list[Hypothesis]:
    """The n finished hypotheses with the best score, best first."""
    return sorted(finished, key=lambda hypothesis: -score(hypothesis, alpha))[:n]
