"""The fit of the scaling law recovers planted constants and predicts a larger run."""

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.special import huber as scipy_huber

from qkv.study.power_law import HUBER_DELTA, PowerLaw, bootstrap, fit, huber, interval, theta_of

# Besiroglu et al. 2024, scaled to the sizes of the study
PLANTED = PowerLaw(E=0.4, A=60.0, a=0.45, B=300.0, b=0.38)


def runs(law=PLANTED, noise=0.0, seed=0):
    """5 sizes x 4 budgets of C = 6 N D."""
    n, c = np.meshgrid(1e4 * 2.0 ** np.arange(5), 1e11 * 3.0 ** np.arange(4))
    n, d = n.ravel(), (c / (6 * n)).ravel()
    errors = np.random.default_rng(seed).normal(scale=noise, size=len(n))
    return n, d, np.array([law.loss(*run) for run in zip(n, d, strict=True)]) * np.exp(errors)


def test_planted_constants_are_recovered():
    found = fit(*runs())
    assert found == pytest.approx(PLANTED, rel=1e-4)
    assert found.optimal_exponent == pytest.approx(0.38 / 0.83, rel=1e-4)


def test_planted_exponents_are_in_the_interval_of_noisy_runs():
    data = runs(noise=0.002)
    best = fit(*data)
    fits = bootstrap(*data, best)
    for name in ("a", "b", "E"):
        low, high = interval(fits, name)
        assert low < getattr(PLANTED, name) < high and high - low < 0.6


def test_a_larger_run_is_predicted_within_three_percent():
    n, d = 8e4, 3 * 27e11 / (6 * 8e4)
    assert fit(*runs(noise=0.002)).loss(n, d) == pytest.approx(PLANTED.loss(n, d), rel=0.03)


def test_an_outlier_changes_little():
    n, d, losses = runs()
    losses[7] *= 1.2
    assert fit(n, d, losses) == pytest.approx(PLANTED, rel=0.1)


def test_the_minimum_is_scipys():
    n, d, losses = runs(noise=0.01)

    def objective(theta):
        log_a, a, log_b, b, log_e = theta
        terms = [log_a - a * np.log(n), log_b - b * np.log(d), np.full(len(n), log_e)]
        return scipy_huber(HUBER_DELTA, np.logaddexp.reduce(terms) - np.log(losses)).sum()

    ours = objective(theta_of(fit(n, d, losses)))
    theirs = scipy_minimize(objective, theta_of(PLANTED), method="Nelder-Mead",
                            options={"maxiter": 20_000, "maxfev": 20_000}).fun  # fmt: skip
    assert ours <= theirs * 1.001


def test_the_huber_loss_is_scipys():
    residuals = np.array([[1e-4, -5e-4, 2e-3, -0.1]])
    assert huber(residuals)[0] == pytest.approx(scipy_huber(HUBER_DELTA, residuals).sum())
