"""Study `context`: sentences of both meanings, and the distances of a word's vectors."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

from qkv.study import context
from qkv.study.question import Trial
from qkv.study.word_sentences import MEANINGS, meaning_sentences


@pytest.mark.parametrize("word", MEANINGS)
def test_both_meanings_have_the_word_once_in_the_same_place(word):
    first, second = meaning_sentences(word)
    assert {s.index(word) for s in first} == {s.index(word) for s in second}
    assert {s.count(word) for s in first + second} == {1}
    assert {len(s) for s in first} == {len(s) for s in second} and len(first) == len(second)


def test_distances_are_those_of_scipy():
    a, b = torch.randn(2, 7, 5, dtype=torch.float64)
    expected = cdist(a, b, "cosine").mean()
    assert context.mean_distance(a, b) == pytest.approx(expected)
    assert context.mean_distance(a, a) == pytest.approx(np.mean(pdist(a, "cosine")))


def test_embeddings_do_not_depend_on_the_sentence_and_hidden_states_do():
    trial = Trial({"word": "bank"}, 0, 4, Path(), lambda step: None)
    measured = context.measure(trial)
    assert measured["static"] == pytest.approx(0, abs=1e-9)
    assert len(measured["distances"]) == context.N_LAYERS + 1
    assert min(measured["distances"][1:]) > 1e-6
