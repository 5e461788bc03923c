"""BLEU: translations and their references in, as lists of tokens; a score from 0 to 100 out.

Clipped n-gram precisions, their geometric mean, and a penalty for brevity, over a whole corpus (Papineni et al., 2002).
Equal to sacrebleu on text that is already tokenised. Told in docs/translation.md, "Scores".
"""

import math
from collections import Counter

Tokens = list[str]


def n_grams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    """Every run of n tokens, and how often it occurs.

    >>> list(n_grams("Thank you so much".split(), 3))
    [('Thank', 'you', 'so'), ('you', 'so', 'much')]
    """
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def clipped_matches(candidate: Tokens, references: list[Tokens], n: int) -> int:
    """How many n-grams of the candidate a reference has too, none counted more often than in one reference.

    >>> clipped_matches("Thank Thank Thank".split(), ["Thank you so much".split()], n=1)
    1
    """
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= n_grams(reference, n)                    # the larger count of the two, for each n-gram
    return (n_grams(candidate, n) & allowed).total()        # the smaller count of the two


def precisions(candidates: list[Tokens], references: list[list[Tokens]], max_n: int = 4) -> list[float]:
    """p_1 ... p_N: of all n-grams of all candidates, the share that the references confirm.

    An order without a single match gets half, a quarter, an eighth ... of a match (sacrebleu's smoothing 'exp').
    """
    shares, none_so_far = [], 0
    for n in range(1, max_n + 1):
        matches = sum(clipped_matches(c, r, n) for c, r in zip(candidates, references, strict=True))
        total = sum(n_grams(candidate, n).total() for candidate in candidates)
        none_so_far += matches == 0
        shares.append((matches or 0.5 ** none_so_far) / total if total else 0.0)
    return shares


def brevity_penalty(candidate_length: int, reference_length: int) -> float:
    """1 if c >= r, otherwise e^(1 - r / c).

    >>> round(brevity_penalty(2, 6), 4)
    0.1353
    """
    if candidate_length >= reference_length:
        return 1.0
    return math.exp(1 - reference_length / candidate_length) if candidate_length else 0.0


def nearest_length(candidate: Tokens, references: list[Tokens]) -> int:
    """The length of the reference nearest in length, the shorter of two equally near."""
    return min((len(reference) for reference in references), key=lambda r: (abs(r - len(candidate)), r))


def bleu(candidates: list[Tokens], references: list[list[Tokens]], max_n: int = 4) -> float:
    """100 BP exp(1/N sum_n log p_n); references[i] are all the references of candidates[i].

    >>> bleu(["the cat sat on the mat".split()], [["the cat sat on the mat".split()]])
    100.0
    """
    if not any(clipped_matches(c, r, 1) for c, r in zip(candidates, references, strict=True)):
        return 0.0                                          # not one word is right: smoothing must not invent one
    shares = precisions(candidates, references, max_n)
    if min(shares) == 0:
        return 0.0                                          # too short for a single n-gram of the highest order
    c = sum(len(candidate) for candidate in candidates)
    r = sum(nearest_length(*pair) for pair in zip(candidates, references, strict=True))
    mean_log = sum(math.log(share) for share in shares) / max_n
    return 100 * brevity_penalty(c, r) * math.exp(mean_log)
