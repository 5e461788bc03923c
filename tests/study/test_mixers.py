"""The study of mixers: equal parameters, and what each mixer measures."""

from pathlib import Path

import pytest

from qkv.model.transformer import Transformer
from qkv.study.mixers import BUDGET, MIXERS, N_LAYERS, measure_recall, spec_of
from qkv.study.question import Trial


@pytest.mark.parametrize(("vocab_size", "max_len"), [(256, 64), (17, 32), (17, 8)])
def test_the_layers_of_all_mixers_have_the_same_parameters(vocab_size, max_len):
    """Counted in the built model, not by the formulas that chose the widths."""
    for name in MIXERS:
        model = Transformer(spec_of(name, vocab_size, max_len))
        branches = [
            part.branch for layer in model.decoder.layers for part in (layer.attn, layer.ffn)
        ]
        n_parameters = sum(weight.numel() for part in branches for weight in part.parameters())
        assert n_parameters == pytest.approx(N_LAYERS * BUDGET, rel=0.01), name


@pytest.mark.parametrize("name", MIXERS)
def test_recall_is_measured_for_every_mixer(name):
    trial = Trial({"mixer": name, "distance": 4}, 0, 2, Path(), lambda step: None)
    measured = measure_recall(trial)
    assert 0 <= measured["accuracy"] <= 1 and measured["tokens"] == 2 * 16 * 8
