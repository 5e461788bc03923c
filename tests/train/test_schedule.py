"""Learning-rate schedules equal those of the textbook, step by step."""

from dataclasses import replace
from itertools import pairwise

import pytest

from qkv.textbook import schedule as textbook
from qkv.train.recipe import Recipe
from qkv.train.schedule import lr_factor

RECIPE = Recipe(steps=100, warmup_steps=20, decay_fraction=0.3)
STEPS = range(1, 101)


def curve(kind, **changes):
    recipe = replace(RECIPE, schedule=kind, **changes)
    return [lr_factor(recipe, 64, step) for step in STEPS]


def test_the_schedule_paper_is_the_formula_of_the_paper():
    assert curve("paper") == pytest.approx(
        [64**-0.5 * min(n**-0.5, n * 20**-1.5) for n in STEPS], rel=1e-15
    )
    assert curve("paper") == pytest.approx(
        [textbook.paper(n, 64, warmup_steps=20) for n in STEPS], rel=1e-15
    )
    assert max(curve("paper")) == curve("paper")[19] == pytest.approx((64 * 20) ** -0.5)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("inverse_sqrt", lambda n: textbook.inverse_sqrt(n, peak=1.0, warmup_steps=20)),
        ("cosine", lambda n: textbook.cosine(n, peak=1.0, warmup_steps=20, total=100)),
        (
            "wsd",
            lambda n: textbook.warmup_stable_decay(
                n, peak=1.0, warmup_steps=20, decay=30, total=100
            ),
        ),
    ],
)
def test_a_schedule_equals_that_of_the_textbook(kind, formula):
    assert curve(kind) == pytest.approx([formula(n) for n in STEPS], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("kind", ["inverse_sqrt", "cosine", "wsd", "constant"])
def test_the_warmup_is_linear(kind):
    assert curve(kind)[:20] == pytest.approx([n / 20 for n in range(1, 21)])


@pytest.mark.parametrize("kind", ["paper", "inverse_sqrt", "cosine", "wsd", "constant"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 100, 500])
def test_no_warmup_and_a_warmup_longer_than_the_run_are_valid(kind, warmup_steps):
    factors = curve(kind, warmup_steps=warmup_steps, decay_fraction=0.0)
    assert all(0 <= factor <= 1 for factor in factors)
    assert warmup_steps > 1 or factors[0] == max(factors) == (64**-0.5 if kind == "paper" else 1)


def test_a_decay_that_begins_during_the_warmup_is_continuous():
    factors = curve("wsd", decay_fraction=0.95)
    assert max(abs(a - b) for a, b in pairwise(factors)) <= 1 / 20 + 1e-12


def test_a_constant_learning_rate_is_constant():
    assert set(curve("constant")[19:]) == {1.0}
