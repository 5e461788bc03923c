"""Greedy decoding: with the cache as without, in company as alone, within its limits."""

import pytest
import torch

from qkv.generate.decode import forced_log_probs, greedy

PAD, BOS, EOS = 0, 1, 2
SPECIAL = {"bos_id": BOS, "eos_id": EOS, "pad_id": PAD}


def uncached(model, source, max_len: int) -> list[int]:
    """The same, one sentence at a time, reading the whole prefix anew at every step."""
    ids = [BOS]
    with torch.no_grad():
        memory = model.encode(source[source != PAD][None])
        while len(ids) <= max_len and ids[-1] != EOS:
            logits = model.logits(model.decode(torch.tensor([ids]), memory))[0, -1]
            logits[[PAD, BOS]] = -torch.inf
            ids.append(int(logits.argmax()))
    return ids[1:]


def test_cached_and_batched_equals_uncached_and_alone(half_trained, make_sources):
    source, real = make_sources(60)
    limits = 2 * real.sum(dim=1) + 3
    together = greedy(half_trained, source, real, max_len=limits, **SPECIAL)
    assert together == [
        uncached(half_trained, row, int(limit)) for row, limit in zip(source, limits, strict=True)
    ]
    lengths = [len(ids) for ids in together]
    assert (
        min(lengths) < 4 and max(lengths) > 15 and any(ids[-1] != EOS for ids in together)
    )  # of every kind


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_200_sentences_come_out_alone_as_in_a_batch(half_trained, make_sources, dtype):
    source, real = make_sources(200, seed=3)
    try:
        model = half_trained.to(dtype)
        limits = 2 * real.sum(dim=1) + 3
        together = greedy(model, source, real, max_len=limits, **SPECIAL)
        for row, here, limit, ids in zip(source, real, limits, together, strict=True):
            assert greedy(model, row[here][None], None, max_len=int(limit), **SPECIAL) == [ids]
    finally:
        half_trained.double()


def test_neither_padding_nor_a_beginning_is_ever_said(half_trained, make_sources):
    source, real = make_sources(4)
    table = half_trained.embed.weight.data
    kept = table.clone()
    try:
        table[[PAD, BOS]] *= 50  # loud enough to win, were they allowed
        said = greedy(half_trained, source, real, max_len=20, **SPECIAL)
    finally:
        table.copy_(kept)
    assert {PAD, BOS}.isdisjoint(token for ids in said for token in ids)


def test_a_limit_cuts_and_does_not_change_what_comes_before(half_trained, make_sources):
    source, real = make_sources(20)
    free = greedy(half_trained, source, real, max_len=30, **SPECIAL)
    assert greedy(half_trained, source, real, max_len=4, **SPECIAL) == [ids[:4] for ids in free]


def test_a_model_in_training_trains_on_after_decoding(random_model, make_sources):
    model = random_model(0).train()
    source, real = make_sources(2, vocab=6)
    greedy(model, source, real, max_len=5, **SPECIAL)
    assert model.training and torch.is_grad_enabled()
    model.logits(model.decode(source, model.encode(source, real))).sum().backward()


def test_forced_log_probabilities_equal_those_of_each_prefix(random_model, make_sources):
    model = random_model(4)
    source, real = make_sources(3, vocab=6)
    targets = [[3, 4, EOS], [5], [4, 4, 3, 3, EOS]]
    forced = forced_log_probs(model, source, real, targets, BOS)
    with torch.no_grad():
        for row, target, gains in zip(source, targets, forced, strict=True):
            memory = model.encode(row[row != PAD][None])
            for place, token in enumerate(target):
                logits = model.logits(model.decode(torch.tensor([[BOS, *target[:place]]]), memory))[
                    0, -1
                ]
                assert gains[place] == pytest.approx(
                    float(logits.softmax(-1)[token].log()), abs=1e-10
                )
