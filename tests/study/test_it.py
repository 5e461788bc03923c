"""The studies `it` and `context`: their sentences, and what is counted."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist, pdist

from qkv.study import context, it
from qkv.study.question import Trial
from qkv.study.word_sentences import ANIMALS, MEANINGS, PLACES, meaning_sentences, pronoun_sentences


def test_held_out_sentences_have_other_pairs_of_nouns():
    training, held_out = pronoun_sentences()
    pairs, others = ({(s.animal, s.location) for s in part} for part in (training, held_out))
    assert pairs | others == {(a, p) for a in ANIMALS for p in PLACES} and not pairs & others
    for position, nouns in enumerate((ANIMALS, PLACES)):  # every noun is trained
        assert {pair[position] for pair in pairs} == set(nouns)
    assert len(held_out) == 12 * 16


def test_the_translation_names_the_noun_of_the_adjective():
    for s in chain(*pronoun_sentences()):
        words = s.target.split()
        assert words[it.NOUN_INDEX] == s.noun and words[it.NOUN_INDEX - 1] == "the"
        assert s.noun == (ANIMALS[s.animal] if s.is_animal else PLACES[s.location])
        assert s.source.count(it.PRONOUN) == 1


def test_a_head_flips_only_if_its_weight_moves_with_the_adjective():
    _, sentences = pronoun_sentences()
    right = [0.2 if s.is_animal else -0.1 for s in sentences]
    assert it.flip_fraction(right, sentences) == 1
    assert it.flip_fraction([-gap for gap in right], sentences) == 0
    assert it.flip_fraction([0.3] * len(sentences), sentences) == 0


def test_the_gap_of_a_head_is_the_weight_of_the_animal_minus_that_of_the_place():
    sentence = next(s for s in pronoun_sentences()[1] if len(s.animal) == len(s.location) == 2)
    weights = torch.rand(30, 30)
    row = weights[sentence.source.index("它")]
    a, p = sentence.source.index(sentence.animal), sentence.source.index(sentence.location)
    expected = row[a] + row[a + 1] - row[p] - row[p + 1]
    gap = it.noun_gap(weights, sentence, is_encoder=True)
    assert gap == pytest.approx(expected.item(), abs=1e-6)


def test_a_short_training_is_measured():
    trial = Trial({"layers": 1}, 0, 4, Path(), lambda step: None)
    measured = it.measure(trial)
    assert 0 <= measured["accuracy"] <= 1 and len(measured["flips"]) == 2 * it.N_HEADS
    assert measured["best_flip"] == max(measured["flips"])


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
