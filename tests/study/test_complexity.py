"""The study of complexity: FLOPs by formulas, exponents of table 1, path lengths exactly."""

import math

import pytest
import torch
from torch import nn

from qkv.study.complexity import (
    EXPONENTS,
    QUESTION,
    count_flops,
    graph_depth,
    path_length,
    sequential_steps,
)
from qkv.study.statistics import log_slope

CONDITIONS = QUESTION.experiments["layers"].conditions
FORMULAS = {  # multiply-adds x 2; n tokens, width d
    "attention": lambda n, d: 2 * (4 * n * d * d + 2 * n * n * d),
    "recurrent": lambda n, d: 2 * 6 * n * d * d,
    "convolution": lambda n, d: 2 * 3 * n * d * d,
    "token-mlp": lambda n, d: 2 * 2 * n * n * d,
}


@pytest.mark.parametrize("name", FORMULAS)
def test_counted_flops_are_those_of_the_formula(name):
    for n, d in ((32, 8), (24, 16)):
        assert count_flops(name, d, n) == FORMULAS[name](n, d)


@pytest.mark.parametrize("name", EXPONENTS)
def test_exponents_of_flops_are_those_of_the_table(name):
    """The formula, which the counter agrees with, at the sizes of the study."""
    settings, expected = CONDITIONS[name].settings, EXPONENTS[name]
    formula = FORMULAS[name]
    by_length = [formula(n, settings["narrow"]) for n in settings["lengths"]]
    by_width = [formula(settings["long"], d) for d in settings["widths"]]
    assert log_slope(settings["lengths"], by_length) == pytest.approx(expected[0], abs=0.15)
    assert log_slope(settings["widths"], by_width) == pytest.approx(expected[1], abs=0.15)


@pytest.mark.parametrize("name", EXPONENTS)
def test_sequential_steps_grow_with_the_length_only_in_a_recurrence(name):
    steps = [sequential_steps(name, n) for n in (8, 16, 32)]
    assert log_slope((8, 16, 32), steps) == pytest.approx(EXPONENTS[name][2], abs=0.15)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_path_lengths_are_exactly_those_of_the_table(n):
    assert path_length("attention", n) == 1
    assert path_length("token-mlp", n) == 1
    assert path_length("recurrent", n) == n
    assert path_length("convolution", n) == math.ceil((n - 1) / 2)


def test_the_depth_of_a_chain_is_its_length():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(2_000):  # deeper than Python's recursion limit
        y = y * 2
    assert graph_depth(y.grad_fn) == 2_001
    assert graph_depth(nn.functional.relu(x).grad_fn) == 2
