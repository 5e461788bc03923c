"""Statistics of studies agree with scipy and numpy."""

import math

import numpy as np
import pytest
from scipy import stats

from qkv.study.statistics import (
    Comparison,
    bootstrap_interval,
    deviation,
    log_slope,
    paired_t_test,
    student_cdf,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 9, 30, 99])
def test_the_t_distribution_is_scipys(degrees):
    for t in np.linspace(-12, 12, 49):
        assert student_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), abs=1e-12)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 12])
def test_a_paired_t_test_is_scipys(n):
    generator = np.random.default_rng(n)
    first, second = generator.normal(size=(2, n))
    ours, theirs = paired_t_test(first, second), stats.ttest_rel(second, first)
    assert ours.t == pytest.approx(theirs.statistic)
    assert ours.p == pytest.approx(theirs.pvalue)
    assert ours.difference == pytest.approx((second - first).mean())


def test_the_deviation_is_that_of_a_sample():
    values = [1.0, 4.0, 2.5]
    assert deviation(values) == pytest.approx(np.std(values, ddof=1))
    assert math.isnan(deviation([1.0]))


def test_equal_differences_are_certain_and_zero_differences_are_noise():
    assert paired_t_test([1, 2, 3], [2, 3, 4]).p == 0
    assert paired_t_test([1, 2], [1, 2]).p == 1
    assert paired_t_test([1, 2], [1, 2]).is_noise


def test_one_seed_is_never_significant():
    compared = paired_t_test([1.0], [9.0])
    assert math.isnan(compared.p) and compared.is_noise and compared.difference == 8
    assert compared.text == "one seed, not tested"


def test_the_text_of_a_comparison_says_noise():
    assert "within noise" in Comparison(0.1, 1.0, 0.3, 3).text
    assert "within noise" not in Comparison(0.1, 9.0, 0.01, 3).text
    assert Comparison(0.1, 99.0, 1.2e-5, 3).text == "paired t-test over 3 seeds, p = 1.2e-05"


def test_the_bootstrap_interval_is_scipys():
    values = np.random.default_rng(0).normal(size=40)
    low, high = bootstrap_interval(values)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=1).confidence_interval
    assert low == pytest.approx(theirs.low, abs=0.03)
    assert high == pytest.approx(theirs.high, abs=0.03)


def test_the_log_slope_is_the_exponent():
    x = [32, 64, 128, 256]
    assert log_slope(x, [5 * value**1.5 for value in x]) == pytest.approx(1.5)
