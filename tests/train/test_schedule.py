"""The learning rate follows the textbook's curves, step by step."""

from dataclasses import replace
from itertools import pairwise

import pytest

from qkv.textbook import schedule as textbook
from qkv.train.recipe import Recipe
from qkv.train.schedule import share_of_peak

RECIPE = Recipe(steps=100, warmup=20, decay_share=0.3)
STEPS = range(1, 101)


def curve(kind, **changes):
    recipe = replace(RECIPE, schedule=kind, **changes)
    return [share_of_peak(recipe, 64, step) for step in STEPS]


def test_the_paper_s_formula_is_digit_for_digit_the_paper_s():
    assert curve("paper") == pytest.approx(
        [64**-0.5 * min(n**-0.5, n * 20**-1.5) for n in STEPS], rel=1e-15
    )
    assert curve("paper") == pytest.approx(
        [textbook.paper(n, 64, warmup=20) for n in STEPS], rel=1e-15
    )
    assert max(curve("paper")) == curve("paper")[19] == pytest.approx((64 * 20) ** -0.5)


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("inverse_sqrt", lambda n: textbook.inverse_sqrt(n, peak=1.0, warmup=20)),
        ("cosine", lambda n: textbook.cosine(n, peak=1.0, warmup=20, total=100)),
        (
            "wsd",
            lambda n: textbook.warmup_stable_decay(n, peak=1.0, warmup=20, decay=30, total=100),
        ),
    ],
)
def test_a_schedule_equals_the_textbook_s(kind, formula):
    assert curve(kind) == pytest.approx([formula(n) for n in STEPS], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("kind", ["inverse_sqrt", "cosine", "wsd", "constant"])
def test_the_warm_up_is_a_straight_line_to_the_peak(kind):
    assert curve(kind)[:20] == pytest.approx([n / 20 for n in range(1, 21)])


@pytest.mark.parametrize("kind", ["paper", "inverse_sqrt", "cosine", "wsd", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 100, 500])
def test_no_warm_up_and_a_warm_up_longer_than_the_run_are_curves_too(kind, warmup):
    shares = curve(kind, warmup=warmup, decay_share=0.0)
    assert all(0 <= share <= 1 for share in shares)
    assert warmup > 1 or shares[0] == max(shares) == (64**-0.5 if kind == "paper" else 1)


def test_a_decay_that_begins_before_the_warm_up_ends_makes_no_jump():
    shares = curve("wsd", decay_share=0.95)
    assert max(abs(a - b) for a, b in pairwise(shares)) <= 1 / 20 + 1e-12


def test_a_constant_rate_stays():
    assert set(curve("constant")[19:]) == {1.0}
