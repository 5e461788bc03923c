"""The study of positions: without them the order of a sentence is lost."""

from pathlib import Path

import pytest
import torch

from qkv.study.config import StudyConfig
from qkv.study.positions import NAMES, decoder, measure_length, measure_order, measure_tasks
from qkv.study.question import Trial, load_question
from qkv.study.texts import write_data


def trial(settings, folder=Path(), steps=0):
    return Trial(settings, 0, steps, folder, lambda step: None)


def test_only_without_positions_a_permuted_sentence_has_the_same_vector():
    differences = {name: measure_order(trial({"positions": name}))["difference"] for name in NAMES}
    assert differences.pop("none") < 1e-12
    assert min(differences.values()) > 1e-4


def test_the_loss_by_position_covers_four_times_the_trained_length(tmp_path):
    write_data(load_question("positions"), StudyConfig(), tmp_path)
    measured = measure_length(trial({"positions": "learned"}, tmp_path, steps=3))
    assert measured["positions"][-1] == 4 * 64 and len(measured["losses"]) == 16
    assert sum(measured["losses"][:4]) / 4 == pytest.approx(measured["loss"], rel=1e-5)
    assert sum(measured["losses"][4:]) / 12 == pytest.approx(measured["beyond"], rel=1e-5)


def test_tasks_are_measured_at_the_trained_size_and_at_twice_the_size():
    measured = measure_tasks(trial({"task": "copy", "positions": "rotary"}, steps=3))
    assert 0 <= measured["accuracy_longer"] <= 1 and 0 <= measured["accuracy"] <= 1
    assert measured["tokens"] == 3 * 16 * 16


@pytest.mark.parametrize("name", NAMES)
def test_every_encoding_reads_the_longest_sequence(name):
    model = decoder(20, name, 64, trial({}))
    assert model.decode(torch.zeros(1, 64, dtype=torch.long)).shape == (1, 64, 64)
