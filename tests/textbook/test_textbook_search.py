"""The textbook's sampling, beam search, BLEU and speculative decoding against references."""

import itertools
import math
import random

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.textbook import sampling
from qkv.textbook.beam import Hypothesis, beam_search, length_penalty, score
from qkv.textbook.bleu import bleu
from qkv.textbook.speculative import speculative_decode

EOS = 0


def random_model(seed: int, vocab: int = 4, zero_fraction: float = 0.0):
    """Log-probabilities that are a function of the prefix and the seed."""

    def next_log_probs(prefix: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{seed} {prefix}")
        weights = [rng.random() ** 3 * (rng.random() >= zero_fraction) for _ in range(vocab)]
        weights[1] += 1e-3
        return [math.log(weight / sum(weights)) if weight else -math.inf for weight in weights]

    return next_log_probs


def greedy(next_log_probs, max_len: int) -> tuple[int, ...]:
    ids: tuple[int, ...] = ()
    while len(ids) < max_len and EOS not in ids:
        gains = next_log_probs(ids)
        ids = (*ids, gains.index(max(gains)))
    return ids


def all_hypotheses(next_log_probs, vocab: int, max_len: int) -> list[Hypothesis]:
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
def test_a_beam_of_one_is_greedy_search(alpha):
    for seed in range(60):
        model = random_model(seed)
        (best,) = beam_search(model, EOS, max_len=8, beam_size=1, alpha=alpha)
        assert best.ids == greedy(model, 8)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("zero_fraction", [0.0, 0.3])
def test_a_beam_of_all_hypotheses_is_exhaustive_search(alpha, zero_fraction):
    for seed in range(12):
        model = random_model(seed, vocab=3, zero_fraction=zero_fraction)
        sentences = all_hypotheses(model, vocab=3, max_len=4)
        ranked = sorted(sentences, key=lambda sentence: -score(sentence, alpha))
        found = beam_search(model, EOS, max_len=4, beam_size=len(sentences), alpha=alpha)
        assert [hypothesis.ids for hypothesis in found] == [sentence.ids for sentence in ranked]
        assert [h.log_prob for h in found] == pytest.approx([s.log_prob for s in ranked])


def test_early_stopping_gives_the_same_hypotheses():
    """The same search without rule 4, up to max_len, gives no better hypotheses."""

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


def test_the_search_stops_when_no_live_hypothesis_can_improve():
    prefixes = []

    def confident(prefix: tuple[int, ...]) -> list[float]:
        prefixes.append(prefix)
        return [math.log(0.98), math.log(0.01), math.log(0.01)]

    beam_search(confident, EOS, max_len=50, beam_size=2, alpha=0.6)
    assert max(len(prefix) for prefix in prefixes) < 10


def test_ties_are_ordered_by_live_rank_then_by_token():
    uniform = [math.log(1 / 4)] * 4
    found = beam_search(lambda prefix: uniform, EOS, max_len=2, beam_size=4, alpha=0.0)
    assert [h.ids for h in found] == [(0,), (1, 0), (1, 1), (1, 2)]


def test_a_length_penalty_prefers_a_longer_hypothesis():
    def model(prefix: tuple[int, ...]) -> list[float]:
        return [math.log(p) for p in ([0.5, 0.5] if len(prefix) == 0 else [0.8, 0.2])]

    assert beam_search(model, EOS, 5, beam_size=3, alpha=0.0)[0].ids == (0,)
    assert beam_search(model, EOS, 5, beam_size=3, alpha=2.0)[0].ids != (0,)
    assert length_penalty(1, 0.6) == 1 and length_penalty(7, 1.0) == 2


def probs_of(logits: torch.Tensor) -> torch.Tensor:
    return torch.softmax(logits, dim=-1)


@pytest.mark.parametrize(
    ("rule", "warper", "value"),
    [
        ("temperature", "TemperatureLogitsWarper", 0.7),
        ("top_k", "TopKLogitsWarper", 5),
        ("top_p", "TopPLogitsWarper", 0.8),
        ("min_p", "MinPLogitsWarper", 0.1),
        ("typical_p", "TypicalLogitsWarper", 0.7),
    ],
)
def test_sampling_rules_equal_transformers(rule, warper, value):
    import transformers

    generator = torch.Generator().manual_seed(5)
    for _ in range(100):
        logits = torch.randn(20, generator=generator, dtype=torch.float64) * 3
        ours = getattr(sampling, rule)(logits, value)
        theirs = getattr(transformers, warper)(value)(
            torch.zeros(1, 1, dtype=torch.long), logits[None]
        )[0]
        assert ours.isneginf().equal(theirs.isneginf())
        torch.testing.assert_close(probs_of(ours), probs_of(theirs), rtol=0, atol=1e-12)


def test_repetition_penalty_equals_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    logits, seen = torch.randn(20, generator=torch.Generator().manual_seed(6)), [3, 7, 3, 19]
    theirs = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), logits[None].clone())[0]
    torch.testing.assert_close(sampling.repetition_penalty(logits, seen, 1.3), theirs)


def test_ties_of_the_kth_largest_are_kept_and_a_large_k_keeps_all():
    logits = torch.tensor([1.0, 2.0, 2.0, 0.0])
    assert sampling.top_k(logits, 2).isneginf().tolist() == [True, False, False, True]
    assert sampling.top_k(logits, 1).isneginf().tolist() == [True, False, False, True]
    assert sampling.top_k(logits, 99).equal(logits)


def test_chained_rules_keep_at_least_one_token():
    generator = torch.Generator().manual_seed(7)
    for _ in range(50):
        logits = torch.randn(12, generator=generator, dtype=torch.float64) * 5
        for rule, value in (("top_k", 3), ("typical_p", 0.01), ("top_p", 0.01), ("min_p", 1.0)):
            logits = getattr(sampling, rule)(logits, value)
            assert logits.isfinite().any() and not logits.isnan().any()


def test_evenly_spaced_uniforms_draw_each_token_by_its_probability():
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
        own = [sentence() for _ in range(n_references)]
        near = [word for word in own[0] if rng.random() < 0.9]
        candidates.append(near if rng.random() < 0.6 else sentence())
        references.append(own)
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
    assert sum(0 < s < 100 for s in scores) > 150 and 0 in scores  # the corpora vary


# ── Speculative decoding ──────────────────────────────────────────────────────────────────────────
@given(st.integers(0, 10**9), st.floats(0, 1), st.integers(0, 40), st.integers(0, 6))
def test_speculative_decoding_equals_the_target_model(seed, accuracy, n_new, n_draft):
    def target(ids):
        return random.Random(f"{seed} {ids[-3:]}").randrange(20)

    def draft(ids):
        return target(ids) if random.Random(f"{ids} {seed}").random() < accuracy else 99

    alone = [1, 2]
    for _ in range(n_new):
        alone.append(target(alone))
    text, n_passes = speculative_decode(target, draft, [1, 2], n_new, n_draft)
    assert text == alone[2:]
    fewest = -(-n_new // (n_draft + 1))
    assert fewest <= n_passes <= n_new
    assert speculative_decode(target, target, [1, 2], n_new, n_draft)[1] == fewest
    assert speculative_decode(target, lambda ids: 99, [1, 2], n_new, n_draft)[1] == n_new
