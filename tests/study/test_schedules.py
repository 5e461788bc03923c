"""The studies of schedules and optimizers: equal peaks, and losses at equal time."""

import math
from pathlib import Path

import pytest

from qkv.study.config import StudyConfig
from qkv.study.language_model import recipe_of
from qkv.study.optimizer import RATES, loss_at, measure, options_of
from qkv.study.question import Trial, load_question
from qkv.study.schedules import D_MODEL, LR, QUESTION
from qkv.study.schedules import options_of as schedule_options
from qkv.study.texts import write_data
from qkv.train.schedule import lr_factor


@pytest.mark.parametrize("condition", QUESTION.experiments["schedules"].conditions.values())
def test_every_schedule_has_the_same_peak(condition):
    trial = Trial(condition.settings, 0, 400, Path(), lambda step: None)
    recipe = recipe_of(trial, **schedule_options(**condition.settings, steps=400))
    rates = [recipe.lr * lr_factor(recipe, D_MODEL, step) for step in range(1, 401)]
    assert max(rates) == pytest.approx(LR)
    assert (rates[0] < LR / 10) == condition.settings["warm_up"]


def test_the_loss_at_a_time_is_interpolated():
    assert loss_at([1.0, 2.0, 4.0], [3.0, 2.0, 1.0], 3.0) == pytest.approx(1.5)
    assert math.isnan(loss_at([1.0, 2.0], [3.0, None], 2.0))


@pytest.mark.parametrize("optimizer", RATES)
def test_an_optimizer_trains(optimizer, tmp_path):
    write_data(load_question("optimizer"), StudyConfig(), tmp_path)
    settings = {"optimizer": optimizer, "rate": RATES[optimizer][1]}
    measured = measure(Trial(settings, 0, 12, tmp_path, lambda step: None))
    assert measured["train_loss"][-1] < measured["train_loss"][0]
    assert measured["ms_per_step"] > 0


def test_weight_decay_is_what_distinguishes_adamw():
    adam, adamw = (options_of(name, 1e-3) for name in ("adam", "adamw"))
    assert (adam["weight_decay"], adamw["weight_decay"]) == (0.0, 0.1)
