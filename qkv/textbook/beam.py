"""Beam search for one sentence: the next token's log-probabilities in, the best whole sentences out, best first.

Section 6.1 of the paper: beam 4, length penalty 0.6. Here without cache or batch; qkv/generate/beam.py must give the
same hypotheses. Told in docs/translation.md, "Beam search".
"""

import math
from collections.abc import Callable
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """Tokens so far (with <eos>, if it ended; without <bos>) and the sum of their log-probabilities."""

    ids: tuple[int, ...]
    log_prob: float


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha: with it, long sentences are not punished for every further token."""
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
    """At most beam_size whole sentences, best score first. The exact rules:

    1. Each step prolongs every live hypothesis by every token of the vocabulary. The best 2 * beam_size by log_prob
       are the candidates; equals are ordered by the rank of their live hypothesis, then by token id. What is
       impossible (log-probability -inf) is no candidate.
    2. Candidates that end in <eos> are set aside as finished, if they stand among the first beam_size; later ones
       are dropped. The first beam_size candidates that do not end live on, in the order of the candidates.
    3. Of the finished, the best beam_size by score are kept; of equals, the one found first.
    4. The search ends when beam_size are finished and no live one can still beat the worst of them. The best that a
       live one can hope for is to lose no more probability and to be as long as possible (alpha is never negative):
       log_prob / length_penalty(max_len). A beam of one, being greedy search, ends with its first finished one.
    5. At max_len tokens the live ones are finished as they are, without <eos>, and rule 3 holds for the last time.
    """
    live, finished = [Hypothesis((), 0.0)], list[Hypothesis]()
    for _ in range(max_len):
        candidates = best_extensions(live, next_log_probs, 2 * beam_size)
        ended = [candidate for candidate in candidates[:beam_size] if candidate.ids[-1] == eos_id]
        live = [candidate for candidate in candidates if candidate.ids[-1] != eos_id][:beam_size]
        finished = best_finished(finished + ended, beam_size, alpha)
        hope = live[0].log_prob / length_penalty(max_len, alpha) if live else -math.inf
        if len(finished) == beam_size and (beam_size == 1 or hope <= score(finished[-1], alpha)):
            return finished
    return best_finished(finished + live, beam_size, alpha)


def best_extensions(
    live: list[Hypothesis], next_log_probs: Callable[[tuple[int, ...]], list[float]], n: int
) -> list[Hypothesis]:
    """The n likeliest ways to add one token to one of the live hypotheses."""
    extensions = [
        Hypothesis((*ids, token), log_prob + gain)
        for ids, log_prob in live
        for token, gain in enumerate(next_log_probs(ids))
        if gain > -math.inf
    ]
    return sorted(extensions, key=lambda extension: -extension.log_prob)[:n]    # sorting is stable: equals keep order


def best_finished(finished: list[Hypothesis], n: int, alpha: float) -> list[Hypothesis]:
    """The n finished hypotheses of the best score, best first."""
    return sorted(finished, key=lambda hypothesis: -score(hypothesis, alpha))[:n]
