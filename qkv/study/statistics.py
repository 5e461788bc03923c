"""Statistics over seeds: mean, standard deviation, paired t-test, bootstrap, slope.

See docs/explanation/studies/index.md, "Statistics".
"""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from qkv.messages import _

__all__ = ["paired_t_test"]

SIGNIFICANT = 0.05  # a larger p-value: the difference is within noise
RESAMPLES = 2_000


def deviation(values: Sequence[float]) -> float:
    """The standard deviation with n - 1; NaN for one value.

    >>> deviation([1.0, 2.0, 3.0])
    1.0
    """
    if len(values) < 2:
        return math.nan
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def student_cdf(t: float, degrees: int) -> float:
    """The distribution function of Student's t for a whole number of degrees of freedom.

    The probability of |T| < |t| is a finite sum over powers of cos(theta), with
    tan(theta) = t / sqrt(degrees) (Abramowitz and Stegun, 26.7.3 and 26.7.4).

    >>> round(student_cdf(2.0, 2), 4)
    0.9082
    """
    theta = math.atan2(t, math.sqrt(degrees))
    square, odd = math.cos(theta) ** 2, degrees % 2
    term = math.cos(theta) if odd else 1.0
    total = term if degrees > 1 else 0.0
    for power in range(2 + odd, degrees - 1, 2):
        term *= square * (power - 1) / power
        total += term
    inside = math.sin(theta) * total
    inside = (theta + inside) * 2 / math.pi if odd else inside
    return 0.5 + 0.5 * inside


class Comparison(NamedTuple):
    """The paired comparison of two conditions over the same seeds.

    >>> Comparison(0.1, 12.0, 0.007, 3).is_noise
    False

    Attributes:
        difference: The mean of the differences.
        t: Student's t; NaN for one seed.
        p: The two-sided p-value; NaN for one seed.
        n_pairs: The number of seeds.
    """

    difference: float
    t: float
    p: float
    n_pairs: int

    @property
    def is_noise(self) -> bool:
        """Whether the difference may be chance: not significant, or not tested."""
        return not self.p < SIGNIFICANT

    @property
    def text(self) -> str:
        """What the test says, for a conclusion."""
        if math.isnan(self.p):
            return _("one seed, not tested")
        p = f"{self.p:.3f}" if self.p >= 0.001 else f"{self.p:.1e}"
        if self.is_noise:
            return _("within noise: paired t-test over {n} seeds, p = {p}", n=self.n_pairs, p=p)
        return _("paired t-test over {n} seeds, p = {p}", n=self.n_pairs, p=p)


def paired_t_test(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare second - first by pairs, which have the same seed.

    >>> round(paired_t_test([1.0, 2.0, 3.0], [1.5, 2.4, 3.6]).p, 4)
    0.0131
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    n, mean = len(differences), fmean(differences)
    if n < 2:
        return Comparison(mean, math.nan, math.nan, n)
    error = deviation(differences) / math.sqrt(n)
    if error == 0:
        return Comparison(mean, math.copysign(math.inf, mean), float(mean == 0), n)
    t = mean / error
    return Comparison(mean, t, 2 * student_cdf(-abs(t), n - 1), n)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[np.ndarray], float] = np.mean,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """The percentile interval of a statistic over resamples of the values, with replacement."""
    data, generator = np.asarray(values, dtype=float), np.random.default_rng(seed)
    resampled = [
        statistic(data[generator.integers(len(data), size=len(data))]) for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The exponent p of y = c x^p by least squares on the logarithms.

    >>> round(log_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
