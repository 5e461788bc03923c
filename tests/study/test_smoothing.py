"""The study of label smoothing: the calibration error, and translation models that train."""

import numpy as np
import pytest
import torch

from qkv.study.config import StudyConfig
from qkv.study.question import Trial, load_question
from qkv.study.smoothing import N_BINS, calibration_error, measure
from qkv.study.texts import write_data
from qkv.study.translation_model import batch_of, read_pairs, read_tokenizer, valid_pairs


def textbook_ece(probabilities, ids):
    """Guo et al. 2017, equation 3, bin by bin."""
    confidence, best = probabilities.max(axis=1), probabilities.argmax(axis=1)
    total = 0.0
    for index in range(N_BINS):
        inside = (confidence > index / N_BINS) & (confidence <= (index + 1) / N_BINS)
        if inside.any():
            accuracy = (best == ids)[inside].mean()
            total += inside.mean() * abs(accuracy - confidence[inside].mean())
    return total


@pytest.mark.parametrize("factor", [0.5, 2, 8])
def test_the_calibration_error_is_that_of_the_textbook(factor):
    generator = torch.Generator().manual_seed(0)
    logits = factor * torch.randn(400, 12, generator=generator, dtype=torch.float64)
    ids = torch.randint(0, 12, (400,), generator=generator)
    probabilities = logits.softmax(dim=1)
    expected = textbook_ece(probabilities.numpy(), ids.numpy())
    assert calibration_error(probabilities, ids) == pytest.approx(expected, abs=1e-12)


def test_a_calibrated_model_has_no_error():
    probabilities = torch.tensor([[0.75, 0.25]]).repeat(400, 1)
    ids = torch.tensor([0, 0, 0, 1]).repeat(100)
    assert calibration_error(probabilities, ids) == pytest.approx(0, abs=1e-9)


def test_the_loss_without_smoothing_is_that_of_the_targets(tmp_path):
    sources, targets = tmp_path / "a.zh", tmp_path / "a.en"
    sources.write_text("".join(f"第{n}行\n" for n in range(200)), encoding="utf-8")
    targets.write_text("".join(f"line {n}\n" for n in range(200)), encoding="utf-8")
    config = StudyConfig(source=str(sources), target=str(targets))
    write_data(load_question("smoothing"), config, tmp_path)
    trial = Trial({"smoothing": 0.1}, 0, 3, tmp_path, lambda step: None)
    assert len(read_pairs(trial, "train")) == 190 and len(valid_pairs(trial)) == 10
    batch = batch_of(valid_pairs(trial), read_tokenizer(trial))
    assert batch.target_in.shape == batch.target_out.shape and len(batch.source) == 10
    measured = measure(trial)
    assert measured["perplexity"] == pytest.approx(np.exp(measured["loss"]))
    assert 0 <= measured["ece"] <= 1 and measured["bleu_beam"] >= 0
