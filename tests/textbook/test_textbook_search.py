"""The textbook's sampling rules, beam search and BLEU against enumeration, transformers and sacrebleu."""

import itertools
import math
import random

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.textbook import sampling
from qkv.textbook.ahead import write_ahead
from qkv.textbook.beam import Hypothesis, beam_search, length_penalty, score
from qkv.textbook.bleu import bleu

EOS = 0


def random_model(seed: int, vocab: int = 4, impossible: float = 0.0):
    """Log-probabilities that depend on the whole prefix, and stay the same when asked again."""

    def next_log_probs(prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed} {prefix}")
        weights = [rng.random() ** 3 * (rng.random() >= impossible) for _ in range(vocab)]
        weights[1] += 1e-3
        return [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]

    return next_log_probs


def greedy(next_log_probs, max_len: int) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    while len(ids) < max_len and EOS not in ids:
        gains = next_log_probs(ids)
        ids = (*ids, gains.index(max(gains)))
    return ids


def every_sentence(next_log_probs, vocab: int, max_len: int) -> list[Hypothesis]:
    sentences = []
    for length in range(1, max_len + 1):
        for ids in itertools.product(range(vocab), repeat=length):
            ended = ids[-1] == EOS
            if EOS in ids[:-1] or not (ended or length == max_len):
                continue
            sentences.append(
                Hypothesis(ids, sum(next_log_probs(ids[:i])[token] for i, token in enumerate(ids)))
            )
    return [sentence for sentence in sentences if sentence.log_prob > -math.inf]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_one_is_greedy(alpha):
    for seed in range(60):
        model = random_model(seed)
        (best,) = beam_search(model, EOS, max_len=8, beam_size=1, alpha=alpha)
        assert best.ids == greedy(model, 8)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("impossible", [0.0, 0.3])
def test_a_beam_as_wide_as_everything_is_exhaustive_search(alpha, impossible):
    for seed in range(12):
        model = random_model(seed, vocab=3, impossible=impossible)
        sentences = every_sentence(model, vocab=3, max_len=4)
        ranked = sorted(sentences, key=lambda sentence: -score(sentence, alpha))
        found = beam_search(model, EOS, max_len=4, beam_size=len(sentences), alpha=alpha)
        assert [hypothesis.ids for hypothesis in found] == [sentence.ids for sentence in ranked]
        assert [h.log_prob for h in found] == pytest.approx([s.log_prob for s in ranked])


def test_stopping_early_loses_nothing():
    """The same search, written once more without rule 4, finds nothing better by going on to max_len."""

    def without_stopping(next_log_probs, max_len, beam, alpha):
        live, finished = [Hypothesis((), 0.0)], []
        for _ in range(max_len):
            grown = [
                Hypothesis((*ids, token), log_prob + gain)
                for ids, log_prob in live
                for token, gain in enumerate(next_log_probs(ids))
            ]
            grown = sorted(grown, key=lambda h: -h.log_prob)[: 2 * beam]
            finished += [h for h in grown[:beam] if h.ids[-1] == EOS]
            live = [h for h in grown if h.ids[-1] != EOS][:beam]
        return sorted(finished + live, key=lambda h: -score(h, alpha))[:beam]

    for seed, alpha in itertools.product(range(40), (0.0, 0.6, 2.0)):
        model = random_model(seed)
        assert beam_search(model, EOS, 9, 3, alpha) == without_stopping(model, 9, 3, alpha)


def test_the_search_stops_when_no_live_beam_can_win():
    asked = []

    def certain(prefix: tuple[int, ...]) -> list[float]:
        asked.append(prefix)
        return [math.log(0.98), math.log(0.01), math.log(0.01)]

    beam_search(certain, EOS, max_len=50, beam_size=2, alpha=0.6)
    assert max(len(prefix) for prefix in asked) < 10


def test_equals_are_ordered_by_live_rank_then_by_token():
    even = [math.log(1 / 4)] * 4
    found = beam_search(lambda prefix: even, EOS, max_len=2, beam_size=4, alpha=0.0)
    assert [h.ids for h in found] == [(0,), (1, 0), (1, 1), (1, 2)]


def test_a_longer_sentence_wins_with_a_penalty_and_loses_without():
    def model(prefix: tuple[int, ...]) -> list[float]:
        return [math.log(p) for p in ([0.5, 0.5] if len(prefix) == 0 else [0.8, 0.2])]

    assert beam_search(model, EOS, 5, beam_size=3, alpha=0.0)[0].ids == (0,)
    assert beam_search(model, EOS, 5, beam_size=3, alpha=2.0)[0].ids != (0,)
    assert length_penalty(1, 0.6) == 1 and length_penalty(7, 1.0) == 2


def probabilities(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits, dim=-1)


@pytest.mark.parametrize(
    ("rule", "warper", "value"),
    [
        ("temperature", "TemperatureLogitsWarper", 0.7),
        ("top_k", "TopKLogitsWarper", 5),
        ("top_p", "TopPLogitsWarper", 0.8),
        ("min_p", "MinPLogitsWarper", 0.1),
        ("typical", "TypicalLogitsWarper", 0.7),
    ],
)
def test_sampling_rules_equal_those_of_transformers(rule, warper, value):
    import transformers

    generator = torch.Generator().manual_seed(5)
    for _ in range(100):
        logits = torch.randn(20, generator=generator, dtype=torch.float64) * 3
        ours = getattr(sampling, rule)(logits, value)
        theirs = getattr(transformers, warper)(value)(
            torch.zeros(1, 1, dtype=torch.long), logits[None]
        )[0]
        assert ours.isneginf().equal(theirs.isneginf())
        torch.testing.assert_close(probabilities(ours), probabilities(theirs), rtol=0, atol=1e-12)


def test_repetition_penalty_equals_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, seen = torch.randn(20, generator=torch.Generator().manual_seed(6)), [3, 7, 3, 19]
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits[None].clone())[0]
    torch.testing.assert_close(sampling.repetition_penalty(logits, seen, 1.3), theirs)


def test_equals_of_the_kth_best_stay_and_a_large_k_keeps_all():
    logits = torch.tensor([1.0, 2.0, 2.0, 0.0])
    assert sampling.top_k(logits, 2).isneginf().tolist() == [True, False, False, True]
    assert sampling.top_k(logits, 1).isneginf().tolist() == [True, False, False, True]
    assert sampling.top_k(logits, 99).equal(logits)


def test_rules_chained_after_one_another_keep_at_least_one_token():
    generator = torch.Generator().manual_seed(7)
    for _ in range(50):
        logits = torch.randn(12, generator=generator, dtype=torch.float64) * 5
        for rule, value in (("top_k", 3), ("typical", 0.01), ("top_p", 0.01), ("min_p", 1.0)):
            logits = getattr(sampling, rule)(logits, value)
            assert logits.isfinite().any() and not logits.isnan().any()


def test_evenly_spread_chances_draw_every_token_as_often_as_its_probability():
    logits = torch.tensor([0.5, 0.125, 0.25, 0.125], dtype=torch.float64).log()
    drawn = [sampling.draw(logits, (i + 0.5) / 1000) for i in range(1000)]
    assert [drawn.count(token) for token in range(4)] == [500, 125, 250, 125]


def corpus(rng: random.Random) -> tuple[list[list[str]], list[list[list[str]]]]:
    words = "abcdefgh"[: rng.randint(1, 8)]
    shortest = rng.choice([0, 1, 4])

    def sentence() -> list[str]:
        return rng.choices(words, k=rng.randint(shortest, 12))

    n, n_references = rng.randint(1, 8), rng.choice([1, 1, 2, 3])
    candidates, references = [], []
    for _ in range(n):
        mine = [sentence() for _ in range(n_references)]
        near = [word for word in mine[0] if rng.random() < 0.9]
        candidates.append(near if rng.random() < 0.6 else sentence())
        references.append(mine)
    return candidates, references


def test_bleu_equals_sacrebleu_on_300_random_corpora():
    rng, scores = random.Random(8), []
    for _ in range(300):
        candidates, references = corpus(rng)
        lines = [" ".join(candidate) for candidate in candidates]
        columns = [
            [" ".join(reference) for reference in column]
            for column in zip(*references, strict=True)
        ]
        theirs = sacrebleu.BLEU(tokenize="none", force=True).corpus_score(lines, columns).score
        scores.append(theirs)
        assert bleu(candidates, references) == pytest.approx(theirs, abs=1e-9)
    assert sum(0 < s < 100 for s in scores) > 150 and 0 in scores  # the corpora are of many kinds


# ── Looking ahead ────────────────────────────────────────────────────────────────────────────────────────────────
@given(st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 40), st.integers(0, 6))
def test_looking_ahead_writes_what_the_slow_model_writes_alone(seed, right, n_new, n_guesses):
    def slow(ids):
        return random.Random(f"{seed} {ids[-3:]}").randrange(20)

    def quick(ids):
        return slow(ids) if random.Random(f"{ids} {seed}").random() < right else 99

    alone = [1, 2]
    for _ in range(n_new):
        alone.append(slow(alone))
    text, readings = write_ahead(slow, quick, [1, 2], n_new, n_guesses)
    assert text == alone[2:]
    assert -(-n_new // (n_guesses + 1)) <= readings <= n_new
    assert write_ahead(slow, slow, [1, 2], n_new, n_guesses)[1] == -(-n_new // (n_guesses + 1))
    assert write_ahead(slow, lambda ids: 99, [1, 2], n_new, n_guesses)[1] == n_new
