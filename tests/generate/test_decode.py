"""Greedy decoding: cache, batch and limits do not change the result."""

import pytest
import torch
from tiny_translators import unpadded

from qkv.generate.beam import BeamSearchConfig
from qkv.generate.decode import forced_log_probs, greedy

PAD, BOS, EOS = 0, 1, 2
CONFIG = BeamSearchConfig(BOS, EOS, PAD)


def uncached(model, source, limit: int) -> list[int]:
    """Greedy decoding of one sentence without a cache."""
    ids = [BOS]
    with torch.no_grad():
        memory = model.encode(source[source != PAD][None])
        while len(ids) <= limit and ids[-1] != EOS:
            logits = model.logits(model.decode(torch.tensor([ids]), memory))[0, -1]
            logits[[PAD, BOS]] = -torch.inf
            ids.append(int(logits.argmax()))
    return ids[1:]


def test_cached_and_batched_equals_uncached(half_trained, make_sources):
    source, attention_mask = make_sources(60)
    limits = (2 * attention_mask.sum(dim=1) + 3).tolist()
    batched = greedy(half_trained, unpadded(source, attention_mask), CONFIG, limits)
    assert batched == [
        uncached(half_trained, row, limit) for row, limit in zip(source, limits, strict=True)
    ]
    lengths = [len(ids) for ids in batched]
    # Short, long and truncated ones.
    assert min(lengths) < 4 and max(lengths) > 15 and any(ids[-1] != EOS for ids in batched)


def test_greedy_decoding_of_200_sentences_is_batch_invariant(half_trained_in_dtype, make_sources):
    model, (source, attention_mask) = half_trained_in_dtype, make_sources(200, seed=3)
    rows, limits = unpadded(source, attention_mask), (2 * attention_mask.sum(dim=1) + 3).tolist()
    batched = greedy(model, rows, CONFIG, limits)
    for row, limit, ids in zip(rows, limits, batched, strict=True):
        assert greedy(model, [row], CONFIG, [limit]) == [ids]


def test_pad_and_bos_are_never_generated(half_trained, make_sources):
    source, attention_mask = make_sources(4)
    table = half_trained.embed.weight.data
    before = table.clone()
    try:
        table[[PAD, BOS]] *= 50  # their logits are the largest
        found = greedy(half_trained, unpadded(source, attention_mask), CONFIG, [20] * len(source))
    finally:
        table.copy_(before)
    assert {PAD, BOS}.isdisjoint(token for ids in found for token in ids)


def test_a_limit_truncates_and_changes_nothing_before(half_trained, make_sources):
    source, attention_mask = make_sources(20)
    free = greedy(half_trained, unpadded(source, attention_mask), CONFIG, [30] * len(source))
    limited = greedy(half_trained, unpadded(source, attention_mask), CONFIG, [4] * len(source))
    assert limited == [ids[:4] for ids in free]


def test_decoding_restores_training_mode_and_gradients(random_model, make_sources):
    model = random_model(0).train()
    source, attention_mask = make_sources(2, vocab=6)
    greedy(model, unpadded(source, attention_mask), CONFIG, [5] * len(source))
    assert model.training and torch.is_grad_enabled()
    model.logits(model.decode(source, model.encode(source, attention_mask))).sum().backward()


def test_forced_log_probabilities_equal_those_of_each_prefix(random_model, make_sources):
    model = random_model(4)
    source, attention_mask = make_sources(3, vocab=6)
    targets = [[3, 4, EOS], [5], [4, 4, 3, 3, EOS]]
    forced = forced_log_probs(model, unpadded(source, attention_mask), targets, BOS)
    with torch.no_grad():
        for row, target, log_probs in zip(source, targets, forced, strict=True):
            memory = model.encode(row[row != PAD][None])
            for position, token in enumerate(target):
                prefix = torch.tensor([[BOS, *target[:position]]])
                logits = model.logits(model.decode(prefix, memory))[0, -1]
                expected = float(logits.softmax(-1)[token].log())
                assert log_probs[position] == pytest.approx(expected, abs=1e-10)
