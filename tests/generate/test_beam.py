"""Beam search: the textbook's rules for all sentences at once."""

import itertools
import math

import pytest
import torch

from qkv.generate import beam as beam_module
from qkv.generate.beam import BeamRules, Search, beam_search
from qkv.generate.decode import forced_log_probs, greedy
from qkv.textbook.beam import beam_search as textbook_search
from qkv.textbook.beam import score as textbook_score

PAD, BOS, EOS = 0, 1, 2


def rules(size: int = 4, alpha: float = 0.6) -> BeamRules:
    return BeamRules(BOS, EOS, PAD, size, alpha)


def textbook(model, row: torch.Tensor, size: int, alpha: float, max_len: int) -> list[tuple]:
    """The textbook's search over the same model, without cache or batch."""
    memory = model.encode(row[row != PAD][None])

    def next_log_probs(prefix: tuple[int, ...]) -> list[float]:
        logits = model.logits(model.decode(torch.tensor([[BOS, *prefix]]), memory))[0, -1]
        logits[[PAD, BOS]] = -math.inf
        return logits.log_softmax(dim=-1).tolist()

    with torch.no_grad():
        return textbook_search(next_log_probs, EOS, max_len, size, alpha)


def agree(ours, theirs, alpha: float) -> None:
    assert [tuple(one.ids) for one in ours] == [one.ids for one in theirs]
    assert [one.log_prob for one in ours] == pytest.approx(
        [one.log_prob for one in theirs], abs=1e-10
    )
    assert [one.score for one in ours] == pytest.approx(
        [textbook_score(one, alpha) for one in theirs], abs=1e-10
    )


@pytest.mark.parametrize("size, alpha", itertools.product([1, 2, 3, 5, 8], [0.0, 0.6, 1.5]))
def test_the_search_equals_the_textbooks(random_model, make_sources, size, alpha):
    for seed in range(6):
        model = random_model(seed)
        source, real = make_sources(5, vocab=6, longest=5, seed=seed)
        limits = torch.tensor([1, 2, 7, 9, 12])
        found = beam_search(model, source, real, rules(size, alpha), limits)
        for row, limit, ours in zip(source, limits.tolist(), found, strict=True):
            agree(ours, textbook(model, row, size, alpha, limit), alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_everything_finds_every_sentence_in_order(
    random_model, make_sources, alpha
):
    max_len, words = 4, (3, 4)
    sentences = [(*ids, EOS) for n in range(max_len) for ids in itertools.product(words, repeat=n)]
    sentences += itertools.product(words, repeat=max_len)
    for seed in range(4):
        model = random_model(seed, vocab=5)
        source, real = make_sources(1, vocab=5, longest=4, seed=seed)
        gains = forced_log_probs(
            model, source.expand(len(sentences), -1), None, sentences, BOS, [PAD, BOS]
        )
        scores = [sum(one) / ((5 + len(one)) / 6) ** alpha for one in gains]
        ranked = sorted(zip(scores, sentences, strict=True), reverse=True)
        (found,) = beam_search(model, source, real, rules(len(sentences), alpha), max_len)
        assert [tuple(one.ids) for one in found] == [ids for _, ids in ranked]
        assert [one.score for one in found] == pytest.approx(
            [score for score, _ in ranked], abs=1e-10
        )


def test_the_search_equals_the_textbooks_on_a_model_that_has_learned(half_trained, make_sources):
    source, real = make_sources(12, seed=5)
    limits = 2 * real.sum(dim=1) + 3
    found = beam_search(half_trained, source, real, rules(4), limits)
    for row, limit, ours in zip(source, limits.tolist(), found, strict=True):
        agree(ours, textbook(half_trained, row, 4, 0.6, limit), 0.6)


def test_equals_are_ordered_as_in_the_textbook(random_model):
    model = random_model(0, vocab=7)
    torch.nn.init.zeros_(model.embed.weight)  # every token is as likely as any other
    source = torch.tensor([[3, EOS]])
    for size, alpha, max_len in itertools.product([1, 2, 3, 4], [0.0, 0.6], [2, 4]):
        (found,) = beam_search(model, source, None, rules(size, alpha), max_len)
        agree(found, textbook(model, source[0], size, alpha, max_len), alpha)


def test_a_beam_of_one_is_greedy(half_trained, make_sources):
    source, real = make_sources(200, seed=7)
    limits = 2 * real.sum(dim=1) + 3
    best = [one.ids for (one,) in beam_search(half_trained, source, real, rules(1), limits)]
    assert best == greedy(
        half_trained, source, real, bos_id=BOS, eos_id=EOS, pad_id=PAD, max_len=limits
    )


def test_scores_are_forced_scores(half_trained, make_sources):
    source, real = make_sources(50, seed=8)
    found = beam_search(half_trained, source, real, rules(4), 20)
    for place in range(4):
        said = [hypotheses[place] for hypotheses in found]
        forced = forced_log_probs(
            half_trained, source, real, [one.ids for one in said], BOS, [PAD, BOS]
        )
        assert [one.log_prob for one in said] == pytest.approx(
            [sum(gains) for gains in forced], abs=1e-9
        )
        assert [one.score for one in said] == pytest.approx(
            [sum(gains) / ((5 + len(gains)) / 6) ** 0.6 for gains in forced], abs=1e-9
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_200_sentences_are_found_alone_as_in_a_batch(half_trained, make_sources, dtype):
    source, real = make_sources(200, seed=9)
    try:
        model = half_trained.to(dtype)
        limits = 2 * real.sum(dim=1) + 3
        together = beam_search(model, source, real, rules(4), limits)
        for row, here, limit, ours in zip(source, real, limits, together, strict=True):
            (alone,) = beam_search(model, row[here][None], None, rules(4), int(limit))
            assert alone[0].ids == ours[0].ids
            assert alone[0].score == pytest.approx(
                ours[0].score, abs=1e-10 if dtype == torch.float64 else 1e-4
            )
    finally:
        half_trained.double()


def test_hypotheses_come_best_first_and_are_all_different(half_trained, make_sources):
    source, real = make_sources(30, seed=10)
    for hypotheses in beam_search(half_trained, source, real, rules(5), 20):
        assert len({tuple(one.ids) for one in hypotheses}) == len(hypotheses) == 5
        assert [one.score for one in hypotheses] == sorted(
            (one.score for one in hypotheses), reverse=True
        )


def test_found_sentences_leave_the_batch(half_trained, make_sources, monkeypatch):
    worked = []

    class Watched(Search):
        def advance(self, logits):
            worked.append(len(logits))
            return super().advance(logits)

    monkeypatch.setattr(beam_module, "Search", Watched)
    source, real = make_sources(30, seed=11)
    beam_search(half_trained, source, real, rules(4), 30)
    assert (
        worked[:2] == [30, 120]
        and worked == [30, *sorted(worked[1:], reverse=True)]
        and worked[-1] < 60
    )
