"""Batched beam search equals the textbook's."""

import itertools
import math

import pytest
import torch
from tiny_translators import unpadded

from qkv.generate import beam as beam_module
from qkv.generate.beam import BeamSearch, BeamSearchConfig, beam_search
from qkv.generate.decode import forced_log_probs, greedy
from qkv.textbook.beam import beam_search as textbook_search
from qkv.textbook.beam import score as textbook_score

PAD, BOS, EOS = 0, 1, 2


def config(size: int = 4, alpha: float = 0.6) -> BeamSearchConfig:
    return BeamSearchConfig(BOS, EOS, PAD, size, alpha)


def textbook(model, row: torch.Tensor, size: int, alpha: float, limit: int) -> list[tuple]:
    """The textbook's search with the same model, without cache or batch."""
    memory = model.encode(row[row != PAD][None])

    def next_log_probs(prefix: tuple[int, ...]) -> list[float]:
        logits = model.logits(model.decode(torch.tensor([[BOS, *prefix]]), memory))[0, -1]
        logits[[PAD, BOS]] = -math.inf
        return logits.log_softmax(dim=-1).tolist()

    with torch.no_grad():
        return textbook_search(next_log_probs, EOS, limit, size, alpha)


def assert_equal(ours, theirs, alpha: float) -> None:
    assert [tuple(hypothesis.ids) for hypothesis in ours] == [found.ids for found in theirs]
    log_probs = [found.log_prob for found in theirs]
    assert [hypothesis.log_prob for hypothesis in ours] == pytest.approx(log_probs, abs=1e-10)
    scores = [textbook_score(found, alpha) for found in theirs]
    assert [hypothesis.score for hypothesis in ours] == pytest.approx(scores, abs=1e-10)


@pytest.mark.parametrize("size, alpha", itertools.product([1, 2, 3, 5, 8], [0.0, 0.6, 1.5]))
def test_beam_search_equals_the_textbook(random_model, make_sources, size, alpha):
    for seed in range(6):
        model = random_model(seed)
        source, attention_mask = make_sources(5, vocab=6, longest=5, seed=seed)
        limits = [1, 2, 7, 9, 12]
        found = beam_search(model, unpadded(source, attention_mask), config(size, alpha), limits)
        for row, limit, ours in zip(source, limits, found, strict=True):
            assert_equal(ours, textbook(model, row, size, alpha, limit), alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_a_beam_of_all_sentences_ranks_all_sentences(random_model, make_sources, alpha):
    limit, words = 4, (3, 4)
    sentences = [(*ids, EOS) for n in range(limit) for ids in itertools.product(words, repeat=n)]
    sentences += itertools.product(words, repeat=limit)
    for seed in range(4):
        model = random_model(seed, vocab=5)
        source, attention_mask = make_sources(1, vocab=5, longest=4, seed=seed)
        log_probs = forced_log_probs(
            model, source.tolist() * len(sentences), sentences, BOS, [PAD, BOS]
        )
        scores = [sum(row) / ((5 + len(row)) / 6) ** alpha for row in log_probs]
        ranked = sorted(zip(scores, sentences, strict=True), reverse=True)
        (found,) = beam_search(
            model,
            unpadded(source, attention_mask),
            config(len(sentences), alpha),
            [limit] * len(source),
        )
        assert [tuple(hypothesis.ids) for hypothesis in found] == [ids for _, ids in ranked]
        found_scores = [hypothesis.score for hypothesis in found]
        assert found_scores == pytest.approx([score for score, _ in ranked], abs=1e-10)


def test_beam_search_of_a_trained_model_equals_the_textbook(half_trained, make_sources):
    source, attention_mask = make_sources(12, seed=5)
    limits = (2 * attention_mask.sum(dim=1) + 3).tolist()
    found = beam_search(half_trained, unpadded(source, attention_mask), config(4), limits)
    for row, limit, ours in zip(source, limits, found, strict=True):
        assert_equal(ours, textbook(half_trained, row, 4, 0.6, limit), 0.6)


def test_equal_scores_are_ordered_as_in_the_textbook(random_model):
    model = random_model(0, vocab=7)
    torch.nn.init.zeros_(model.embed.weight)  # all tokens have the same probability
    source = torch.tensor([[3, EOS]])
    for size, alpha, limit in itertools.product([1, 2, 3, 4], [0.0, 0.6], [2, 4]):
        (found,) = beam_search(model, source.tolist(), config(size, alpha), [limit])
        assert_equal(found, textbook(model, source[0], size, alpha, limit), alpha)


def test_a_beam_of_one_is_greedy(half_trained, make_sources):
    source, attention_mask = make_sources(200, seed=7)
    limits = (2 * attention_mask.sum(dim=1) + 3).tolist()
    found = beam_search(half_trained, unpadded(source, attention_mask), config(1), limits)
    assert [hypothesis.ids for (hypothesis,) in found] == greedy(
        half_trained, unpadded(source, attention_mask), config(1), limits
    )


def test_scores_are_those_of_forced_passes(half_trained, make_sources):
    source, attention_mask = make_sources(50, seed=8)
    found = beam_search(
        half_trained, unpadded(source, attention_mask), config(4), [20] * len(source)
    )
    for rank in range(4):
        ids, log_probs, scores = zip(*(hypotheses[rank] for hypotheses in found), strict=True)
        forced = forced_log_probs(
            half_trained, unpadded(source, attention_mask), ids, BOS, [PAD, BOS]
        )
        assert log_probs == pytest.approx([sum(row) for row in forced], abs=1e-9)
        expected = [sum(row) / ((5 + len(row)) / 6) ** 0.6 for row in forced]
        assert scores == pytest.approx(expected, abs=1e-9)


def test_beam_search_of_200_sentences_is_batch_invariant(half_trained_in_dtype, make_sources):
    model, (source, attention_mask) = half_trained_in_dtype, make_sources(200, seed=9)
    tolerance = 1e-10 if model.embed.weight.dtype == torch.float64 else 1e-4
    rows, limits = unpadded(source, attention_mask), (2 * attention_mask.sum(dim=1) + 3).tolist()
    batched = beam_search(model, rows, config(4), limits)
    for row, limit, ours in zip(rows, limits, batched, strict=True):
        (alone,) = beam_search(model, [row], config(4), [limit])
        assert alone[0].ids == ours[0].ids
        assert alone[0].score == pytest.approx(ours[0].score, abs=tolerance)


def test_hypotheses_are_sorted_by_score_and_distinct(half_trained, make_sources):
    source, attention_mask = make_sources(30, seed=10)
    for hypotheses in beam_search(
        half_trained, unpadded(source, attention_mask), config(5), [20] * len(source)
    ):
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == len(hypotheses) == 5
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)


def test_finished_sentences_leave_the_batch(half_trained, make_sources, monkeypatch):
    n_rows = []

    class RecordedSearch(BeamSearch):
        def advance(self, logits):
            n_rows.append(len(logits))
            return super().advance(logits)

    monkeypatch.setattr(beam_module, "BeamSearch", RecordedSearch)
    source, attention_mask = make_sources(30, seed=11)
    beam_search(half_trained, unpadded(source, attention_mask), config(4), [30] * len(source))
    assert n_rows[:2] == [30, 120] and n_rows[-1] < 60
    assert n_rows == [30, *sorted(n_rows[1:], reverse=True)]
