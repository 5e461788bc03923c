"""The study of scaling laws: equal compute at each budget, and the count of N."""

import math

import pytest

from qkv.model.transformer import Transformer
from qkv.study.results import Results
from qkv.study.runner import with_steps
from qkv.study.scaling import (
    BUDGETS,
    LARGER,
    LARGER_WIDTH,
    QUESTION,
    WIDTHS,
    layer_parameters,
    spec_of,
)


def test_n_counts_the_matrices_of_the_layers():
    for d_model in WIDTHS:
        model = Transformer(spec_of(d_model))
        matrices = [
            weight.numel() for weight in model.decoder.layers.parameters() if weight.ndim == 2
        ]
        assert layer_parameters(d_model) == sum(matrices)


def test_all_sizes_of_a_budget_take_the_same_compute():
    jobs = [
        {"experiment": name, "condition": condition}
        for name, experiment in QUESTION.experiments.items()
        for condition in experiment.conditions
    ]
    compute = {}
    for job in with_steps(QUESTION, jobs, 10_000):
        settings = QUESTION.experiments[job["experiment"]].conditions[job["condition"]].settings
        compute.setdefault(settings["budget"], []).append(settings["n"] * job["steps"])
    assert [len(found) for found in compute.values()] == [5, 5, 5, 5, 1]
    reference = layer_parameters(64) * 10_000
    for budget, found in compute.items():
        assert found == pytest.approx([budget * reference] * len(found), rel=1e-3)
    assert max(compute) == LARGER * BUDGETS[-1]


def test_the_conclusion_predicts_the_larger_run():
    """Losses by a known law: the error of the prediction is small, the exponent that of the law."""

    def row(d_model, budget):
        n = layer_parameters(d_model)
        tokens = 1e7 * budget * layer_parameters(64) / n
        return [{"n": n, "tokens": tokens, "loss": 0.5 + 40 / n**0.4 + 900 / tokens**0.4}]

    runs = {f"d{d}-b{b}": row(d, b) for b in BUDGETS for d in WIDTHS}
    larger = {"larger": row(LARGER_WIDTH, LARGER * BUDGETS[-1])}
    conclusion = QUESTION.conclude(Results(QUESTION, {"runs": runs, "larger": larger}))
    assert "the best size grows with C^0.50" in conclusion
    assert conclusion.endswith("an error of 0.0%.")
    loss = larger["larger"][0]["loss"]
    assert f"measured are {loss:.3f}" in conclusion and math.isfinite(loss)
