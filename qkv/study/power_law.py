"""Fit L(N, D) = E + A / N^a + B / D^b to losses, as Hoffmann et al. 2022 (Chinchilla), approach 3.

The Huber loss of the logarithms is minimized by Levenberg-Marquardt steps on reweighted least
squares, from many starts at once.
"""

from itertools import product
from typing import NamedTuple

import numpy as np

HUBER_DELTA = 1e-3
N_ITERATIONS = 400
STARTS = tuple(product((0.0, 5.0, 10.0), (0.2, 0.6), (0.0, 5.0, 10.0), (0.2, 0.6), (-1.0, 0.5)))
RESAMPLES = 200

Array = np.ndarray


class PowerLaw(NamedTuple):
    """The constants of L(N, D) = E + A / N^a + B / D^b.

    >>> round(PowerLaw(1.69, 406.4, 0.34, 410.7, 0.28).loss(70e9, 1.4e12), 3)
    1.937
    """

    E: float
    A: float
    a: float
    B: float
    b: float

    def loss(self, n: float, d: float) -> float:
        return self.E + self.A / n**self.a + self.B / d**self.b

    @property
    def optimal_exponent(self) -> float:
        """The p of N_opt = c C^p, the best size for C = 6 N D FLOPs: b / (a + b)."""
        return self.b / (self.a + self.b)


def fit(n: Array, d: Array, losses: Array) -> PowerLaw:
    """The best fit over all starts.

    Args:
        n: Parameters of each run.
        d: Training tokens of each run.
        losses: The loss of each run.
    """
    found, objective = minimize(np.array(STARTS), n, d, losses)
    return law_of(found[np.nanargmin(objective)])


def bootstrap(n: Array, d: Array, losses: Array, best: PowerLaw, seed: int = 0) -> list[PowerLaw]:
    """The fits of resampled runs, each started from the best fit."""
    generator, start = np.random.default_rng(seed), theta_of(best)[None]
    fits = []
    for _ in range(RESAMPLES):
        rows = generator.integers(len(n), size=len(n))
        fits.append(law_of(minimize(start, n[rows], d[rows], losses[rows], 60)[0][0]))
    return fits


def interval(fits: list[PowerLaw], name: str, level: float = 0.95) -> tuple[float, float]:
    """The percentile interval of a constant, or of the optimal exponent."""
    values = [getattr(law, name) for law in fits]
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# ── Minimization ──────────────────────────────────────────────────────────────────────────────
# theta = (log A, a, log B, b, log E), in rows: one per start.
def minimize(
    theta: Array, n: Array, d: Array, losses: Array, iterations: int = N_ITERATIONS
) -> tuple[Array, Array]:
    """Levenberg-Marquardt from every start; returns theta and the Huber loss of each."""
    log_n, log_d, log_l = np.log(n), np.log(d), np.log(losses)
    damping = np.full(len(theta), 1e-2)
    residuals, jacobian = residuals_of(theta, log_n, log_d, log_l)
    objective = huber(residuals)
    for _ in range(iterations):
        candidate = theta - step_of(residuals, jacobian, damping)
        new_residuals, new_jacobian = residuals_of(candidate, log_n, log_d, log_l)
        new_objective = huber(new_residuals)
        better = new_objective < objective
        theta = np.where(better[:, None], candidate, theta)
        residuals = np.where(better[:, None], new_residuals, residuals)
        jacobian = np.where(better[:, None, None], new_jacobian, jacobian)
        objective = np.where(better, new_objective, objective)
        damping = np.clip(np.where(better, damping / 3, damping * 4), 1e-9, 1e8)
    return theta, objective


def residuals_of(theta: Array, log_n: Array, log_d: Array, log_l: Array) -> tuple[Array, Array]:
    """log L_predicted - log L, (starts, runs), and its Jacobian, (starts, runs, 5)."""
    log_a, a, log_b, b, log_e = (column[:, None] for column in theta.T)
    terms = np.stack(
        np.broadcast_arrays(log_a - a * log_n, log_b - b * log_d, log_e), axis=-1
    )  # (starts, runs, 3)
    predicted = np.logaddexp.reduce(terms, axis=-1)
    weights = np.exp(terms - predicted[..., None])  # of the terms in the sum
    size, data, rest = np.moveaxis(weights, -1, 0)
    jacobian = np.stack([size, -size * log_n, data, -data * log_d, rest], axis=-1)
    return predicted - log_l, jacobian


def step_of(residuals: Array, jacobian: Array, damping: Array) -> Array:
    """The damped step of least squares with Huber's weights, (starts, 5)."""
    weights = np.minimum(1.0, HUBER_DELTA / np.maximum(np.abs(residuals), 1e-300))
    weighted = jacobian * weights[..., None]
    normal = np.einsum("srp,srq->spq", weighted, jacobian)
    gradient = np.einsum("srp,sr->sp", weighted, residuals)
    scale = np.einsum("spp->sp", normal) + 1e-9
    normal = normal + np.einsum("s,sp,pq->spq", damping, scale, np.eye(normal.shape[-1]))
    return np.linalg.solve(normal, gradient[..., None])[..., 0]


def huber(residuals: Array) -> Array:
    """The sum over runs of Huber's loss."""
    size = np.abs(residuals)
    small = 0.5 * residuals**2
    return np.where(size < HUBER_DELTA, small, HUBER_DELTA * (size - HUBER_DELTA / 2)).sum(axis=1)


def law_of(theta: Array) -> PowerLaw:
    log_a, a, log_b, b, log_e = map(float, theta)
    with np.errstate(over="ignore"):
        return PowerLaw(float(np.exp(log_e)), float(np.exp(log_a)), a, float(np.exp(log_b)), b)


def theta_of(law: PowerLaw) -> Array:
    return np.array([np.log(law.A), law.a, np.log(law.B), law.b, np.log(law.E)])
