"""The study `it`: held-out sentences of the corpus's grammar, positions, flips."""

import pytest
import torch

from qkv.data.builtin import builtin_pairs
from qkv.model.eval_mode import eval_mode
from qkv.study.coreference import (
    KINDS,
    QUESTION,
    builtin_test,
    conclude,
    contrasts,
    flip_rates,
    measure_heads,
    named,
    positions_of,
    preferences,
    training_pairs,
)
from qkv.study.results import Results
from qkv.study.translation import Translator, spec_of, word_tokenizer


@pytest.fixture(scope="module")
def pairs():
    return training_pairs(contrasts())


@pytest.fixture(scope="module")
def translator(pairs):
    from qkv.model.transformer import Transformer

    torch.manual_seed(0)
    tokenizer = word_tokenizer(pairs)
    return Translator(Transformer(spec_of(tokenizer.vocab_size)), tokenizer)


def test_the_contrasts_are_sentences_of_the_corpus():
    """Pairs that the corpus has in the same words have the same translation."""
    english = {pair.source: pair.target for part in builtin_pairs() for pair in part}
    sentences = [pair for row in contrasts() for pair in (row.about_animal, row.about_place)]
    known = [pair for pair in sentences if pair.source in english]
    assert len(known) > 50
    assert all(english[pair.source] == pair.target for pair in known)
    assert len({row.animal.en for row in contrasts()}) == 19
    assert len({row.location.en for row in contrasts()}) == 12


def test_no_training_pair_has_a_held_out_combination(pairs):
    held_out = {(row.animal.en, row.location.en) for row in contrasts()}
    patterns = [f"the {a} wanted to cross the {b}, but the" for a, b in held_out]
    assert not [pair for pair in pairs if pair.target.startswith(tuple(patterns))]
    all_pairs = builtin_pairs()[0]
    related = [pair for pair in all_pairs if "它" in pair.source or " cross " in pair.target]
    assert 100 < len(related) - len(pairs) < 250


def test_the_built_in_test_names_the_noun():
    assert len(builtin_test()) == 11
    for pair in builtin_test():
        assert named(pair.target) in pair.target.split(", but ")[0].split()


def test_the_positions_are_those_of_the_words(translator):
    tokenizer = translator.tokenizer
    for row in contrasts():
        nouns = (row.animal.zh, row.location.zh, row.animal.en, row.location.en)
        for pair, answer in ((row.about_animal, row.animal.en), (row.about_place, row.location.en)):
            source, target = (tokenizer.tokens(tokenizer.encode(text)) for text in pair)
            positions = positions_of(pair, nouns)
            query, animal, place = positions["it"]
            assert source[query] == "它"
            assert "".join(source[index] for index in animal) == row.animal.zh
            assert "".join(source[index] for index in place) == row.location.zh
            assert source[positions["adjective"].query - 1] == "太"
            query, animal, place = positions["decoder"]
            assert target[query] == answer  # target_in has <bos> before it: the next token
            assert [target[index - 1] for index in (*animal, *place)] == list(nouns[2:])


def test_preferences_are_differences_of_the_weights_of_a_sentence_alone(translator):
    from qkv.explore.record import record

    rows = contrasts()[5:9]
    nouns = [(row.animal.zh, row.location.zh, row.animal.en, row.location.en) for row in rows]
    found = preferences(translator, [row.about_place for row in rows], nouns)
    assert {kind: grid.shape for kind, grid in found.items()} == dict.fromkeys(KINDS, (12, 4))
    row, model, tokenizer = rows[2], translator.model, translator.tokenizer
    ids = torch.tensor([[*tokenizer.encode(row.about_place.source), tokenizer.eos_id]])
    with record(model, "encoder.layers.1.attn.branch.core.weights") as steps, eval_mode(model):
        model.encode(ids)
    weights = steps["encoder.layers.1.attn.branch.core.weights"][0, 3]  # (query, key)
    source = row.about_place.source
    sums = [
        sum(
            weights[source.index("它"), source.index(noun) + offset].item()
            for offset in range(len(noun))
        )
        for noun in (row.animal.zh, row.location.zh)
    ]
    assert found["it"][4 + 3, 2].item() == pytest.approx(sums[0] - sums[1], abs=1e-5)


def test_a_flip_is_the_right_noun_in_both_sentences():
    about_animal = torch.tensor([[0.2, 0.1], [0.2, 0.1], [-0.2, -0.1]])
    about_place = torch.tensor([[-0.1, -0.3], [0.1, -0.3], [0.1, 0.3]])
    assert flip_rates(about_animal, about_place).tolist() == [1.0, 0.5, 0.0]


def test_heads_that_flip_are_named(translator):
    measured = measure_heads(translator, contrasts()[:8])
    assert measured["flipping"] == len(measured["heads"])
    assert measured["best_rate"] == max(measured[f"{kind}_rates"][0] for kind in KINDS)
    assert named("the rabbit wanted to sleep, but the rabbit was too tired") == "rabbit"
    assert named("the rabbit slept") is None


def test_the_conclusion_names_the_heads_that_flip_or_says_that_none_does(translator):
    measured = measure_heads(translator, contrasts()[:8])
    measured |= {"accuracy": 1.0, "builtin_accuracy": 0.5}
    none = conclude(Results(QUESTION, {"it": {"translator": [measured | {"flipping": 0}]}}))
    assert "No head flips with the adjective in at least 90%" in none
    best = {"best_rate": 0.97, "best_kind": "cross", "best_head": "decoder.layers.1.cross, head 3"}
    flipping = [measured | best | {"flipping": 4}, measured | {"flipping": 0}]
    named_heads = conclude(Results(QUESTION, {"it": {"translator": flipping}}))
    assert "in 2 models: 4, 0. The clearest is decoder.layers.1.cross, head 3" in named_heads
    assert "100.0% of the new sentences and in 50.0%" in named_heads
