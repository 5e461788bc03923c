"""BLEU (Papineni et al., 2002): a corpus score from 0 to 100 of tokenized translations.

The geometric mean of clipped n-gram precisions times a brevity penalty. Equal to sacrebleu on
tokenized text. See docs/guides/evaluation.md, "Evaluation".
"""

import math
from collections import Counter

__all__ = ["bleu", "brevity_penalty", "clipped_matches", "n_grams", "nearest_length", "precisions"]

Tokens = list[str]


def n_grams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    """Counts of all n-grams.

    >>> list(n_grams("Thank you so much".split(), 3))
    [('Thank', 'you', 'so'), ('you', 'so', 'much')]
    """
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def clipped_matches(candidate: Tokens, references: list[Tokens], n: int) -> int:
    """The number of n-grams in common; each counts at most as often as in one reference.

    >>> clipped_matches("Thank Thank Thank".split(), ["Thank you so much".split()], n=1)
    1
    """
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= n_grams(reference, n)                    # the larger count, for each n-gram
    return (n_grams(candidate, n) & allowed).total()        # the smaller count of the two


def precisions(
    candidates: list[Tokens], references: list[list[Tokens]], max_n: int = 4
) -> list[float]:
    """p_1 ... p_N: the fraction of all n-grams of the candidates that match a reference.

    An order without a match gets 1/2, 1/4, 1/8 ... of a match (sacrebleu's smoothing 'exp').
    """
    fractions, n_without_match = [], 0
    for n in range(1, max_n + 1):
        matches = sum(clipped_matches(c, r, n) for c, r in zip(candidates, references, strict=True))
        total = sum(n_grams(candidate, n).total() for candidate in candidates)
        n_without_match += matches == 0
        fractions.append((matches or 0.5 ** n_without_match) / total if total else 0.0)
    return fractions


def brevity_penalty(candidate_length: int, reference_length: int) -> float:
    """1 if c >= r, otherwise e^(1 - r / c).

    >>> round(brevity_penalty(2, 6), 4)
    0.1353
    """
    if candidate_length >= reference_length:
        return 1.0
    return math.exp(1 - reference_length / candidate_length) if candidate_length else 0.0


def nearest_length(candidate: Tokens, references: list[Tokens]) -> int:
    """The reference length nearest to the candidate's; of two equally near, the shorter."""
    lengths = (len(reference) for reference in references)
    return min(lengths, key=lambda length: (abs(length - len(candidate)), length))


def bleu(candidates: list[Tokens], references: list[list[Tokens]], max_n: int = 4) -> float:
    """100 BP exp(1/N sum_n log p_n); references[i] are all the references of candidates[i].

    >>> bleu(["the cat sat on the mat".split()], [["the cat sat on the mat".split()]])
    100.0
    """
    if not any(clipped_matches(c, r, 1) for c, r in zip(candidates, references, strict=True)):
        return 0.0                                          # no match at all: no smoothing
    fractions = precisions(candidates, references, max_n)
    if min(fractions) == 0:
        return 0.0                                          # too short for n-grams of order max_n
    c = sum(len(candidate) for candidate in candidates)
    r = sum(nearest_length(*pair) for pair in zip(candidates, references, strict=True))
    mean_log = sum(math.log(p) for p in fractions) / max_n
    return 100 * brevity_penalty(c, r) * math.exp(mean_log)
