"""Learning-rate schedules: the learning rate of a training step (steps count from 1).

All have a linear warm-up and differ in the decay. See docs/explanation/training.md, "Learning rate
schedule".
"""

import math

__all__ = ["cosine", "inverse_sqrt", "paper", "warmup_stable_decay"]


def paper(step: int, d_model: int, warmup_steps: int = 4_000) -> float:
    """d_model^-0.5 min(step^-0.5, step warmup_steps^-1.5), section 5.3.

    The maximum, (d_model warmup_steps)^-0.5, is at step = warmup_steps.

    >>> round(paper(4_000, d_model=512), 6)
    0.000699
    """
    return d_model ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)


def inverse_sqrt(step: int, peak: float, warmup_steps: int) -> float:
    """The paper's schedule with any peak: peak min(step / warmup_steps, sqrt(warmup_steps / step)).

    >>> [inverse_sqrt(step, peak=1.0, warmup_steps=4) for step in (1, 2, 4, 16, 64)]
    [0.25, 0.5, 1.0, 0.5, 0.25]
    """
    return peak * min(step / warmup_steps, math.sqrt(warmup_steps / step))


def cosine(step: int, peak: float, warmup_steps: int, total: int, floor: float = 0.0) -> float:
    """After the warm-up, half a cosine from the peak to the floor at the last step.

    >>> [round(cosine(step, peak=1.0, warmup_steps=2, total=10), 3) for step in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    progress = (step - warmup_steps) / (total - warmup_steps)   # from 0 to 1
    return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2


def warmup_stable_decay(
    step: int, peak: float, warmup_steps: int, decay: int, total: int, floor: float = 0.0
) -> float:
    """WSD: after the warm-up, the peak until `decay` steps before the end, then linear decay.

    >>> steps = (1, 2, 6, 7, 10)
    >>> [warmup_stable_decay(n, peak=1.0, warmup_steps=2, decay=4, total=10) for n in steps]
    [0.5, 1.0, 1.0, 0.75, 0.0]
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    remaining = min(1.0, (total - step) / decay)            # 1 while stable, then down to 0
    return floor + (peak - floor) * remaining
