"""Perplexity equals torch's cross-entropy, sentence by sentence and in batches."""

import math
import random
from dataclasses import replace

import pytest
import torch

from qkv.errors import QkvError
from qkv.evaluate import perplexity as module
from qkv.evaluate.perplexity import Perplexity, translation_perplexity
from qkv.model.presets import encoder_decoder
from qkv.model.spec import Learned
from qkv.model.transformer import Transformer


def pairs(n: int) -> tuple[list[list[int]], list[list[int]]]:
    rng = random.Random(4)
    rows = [[rng.choices(range(3, 20), k=rng.randint(0, 9)) for _ in range(n)] for _ in range(2)]
    return [[*row, 2] for row in rows[0]], [[1, *row, 2] for row in rows[1]]


@pytest.mark.parametrize("budget", [1, 60, 4_096])
def test_it_equals_cross_entropy_sentence_by_sentence(monkeypatch, budget):
    monkeypatch.setattr(module, "BATCH_TOKENS", budget)
    torch.manual_seed(0)
    model = Transformer(encoder_decoder(20, 16, 2, 2, 32)).double().train()
    sources, targets = pairs(30)
    ours = translation_perplexity(model, sources, targets)
    assert model.training
    model.eval()
    nats = 0.0
    with torch.no_grad():
        for source, target in zip(sources, targets, strict=True):
            logits = model.logits(
                model.decode(torch.tensor([target[:-1]]), model.encode(torch.tensor([source])))
            )[0]
            nats += float(
                torch.nn.functional.cross_entropy(logits, torch.tensor(target[1:]), reduction="sum")
            )
    assert ours.tokens == sum(len(target) - 1 for target in targets) and ours.skipped == 0
    assert ours.nats == pytest.approx(nats, abs=1e-8)
    assert ours.value == pytest.approx(math.exp(nats / ours.tokens))


def test_uniform_predictions_have_the_perplexity_of_the_vocabulary_size():
    model = Transformer(encoder_decoder(20, 16, 1, 2, 16))
    torch.nn.init.zeros_(model.embed.weight)
    assert translation_perplexity(model, *pairs(5)).value == pytest.approx(20, rel=1e-5)


def test_pairs_longer_than_the_context_are_skipped_and_counted():
    spec = replace(encoder_decoder(20, 16, 1, 2, 16), positions=Learned(), max_len=6)
    sources, targets = [[4, 2], [4] * 6 + [2], [4, 2]], [[1, 5, 2], [1, 5, 2], [1, *[5] * 6, 2]]
    ours = translation_perplexity(Transformer(spec), sources, targets)
    assert (ours.skipped, ours.tokens) == (2, 2)
    assert math.isnan(Perplexity(0.0, 0).nats_per_token)


def test_training_mode_is_restored_after_an_error():
    model = Transformer(encoder_decoder(20, 16, 1, 2, 32)).train()
    with pytest.raises(QkvError, match="out of range"):
        translation_perplexity(model, [[4, 2]], [[1, 99, 2]])  # there is no token 99
    assert all(module.training for module in model.modules())
