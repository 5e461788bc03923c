"""Tables, figure and record of a study with known measurements."""

import json
import math

import pytest

from qkv.study.config import StudyConfig
from qkv.study.question import load_question
from qkv.study.report import command_of, table_of, write_report
from qkv.study.results import Results
from qkv.study.statistics import paired_t_test

LOSSES = {"scaled": [1.0, 1.1, 1.2], "unscaled": [1.5, 1.6, 1.72]}


def results_with(losses):
    question = load_question("scale")
    scores = {
        name: [{column.key: 0.5 for column in question.experiments["scores"].columns}] * 3
        for name in question.experiments["scores"].conditions
    }
    models = {
        name: [
            {"loss": loss, "steps": [1, 2], "train_loss": [3.0, loss], "parameters": 10.0}
            for loss in values
        ]
        for name, values in losses.items()
    }
    return Results(question, {"scores": scores, "language-model": models})


def test_the_table_has_means_deviations_and_the_paired_test():
    headings, rows = table_of(results_with(LOSSES), "language-model")
    assert headings == ["condition", "held-out loss, nats", "parameters", "difference", "p"]
    p = paired_t_test(LOSSES["scaled"], LOSSES["unscaled"]).p
    assert rows[0] == ["with 1/√d_k", "1.100 ± 0.100", "10", "", ""]
    assert rows[1] == ["without", "1.607 ± 0.110", "10", "+0.507", f"{p:.3f}*"]


def test_an_experiment_without_training_compares_nothing():
    headings, rows = table_of(results_with(LOSSES), "scores")
    assert "p" not in headings and all(len(row) == len(headings) for row in rows)


def test_a_diverged_run_is_reported_as_not_finite(tmp_path):
    results = results_with(LOSSES | {"unscaled": [1.5, None, 1.7]})
    _, rows = table_of(results, "language-model")
    assert rows[1][1:] == ["not finite", "10", "", ""]
    assert results.best("language-model", "loss") == "scaled"
    assert math.isnan(results.mean("language-model", "unscaled", "loss"))
    record = write_report("scale", results, tmp_path, StudyConfig(), 7)
    assert record == json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    row = record["experiments"]["language-model"]["summary"]["unscaled"]
    assert row["loss"] == {"mean": None, "deviation": None}


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (StudyConfig(), "qkv study scale --seeds 3 --steps 480"),
        (
            StudyConfig(seeds=5, text="my text.txt"),
            "qkv study scale --seeds 5 --steps 480 --text 'my text.txt'",
        ),
    ],
)
def test_the_command_repeats_the_study(config, command):
    assert command_of("scale", config, 480) == command
