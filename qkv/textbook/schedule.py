"""Schedules: the number of a training step in (from 1), its learning rate out.

All of them warm up in a straight line; they differ in how they come down again.
Told in docs/training.md, "The learning rate".
"""

import math


def paper(step: int, d_model: int, warmup: int = 4_000) -> float:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), section 5.3: highest at step = warmup, (d_model warmup)^-0.5.

    >>> round(paper(4_000, d_model=512), 6)
    0.000699
    """
    return d_model ** -0.5 * min(step ** -0.5, step * warmup ** -1.5)


def inverse_sqrt(step: int, peak: float, warmup: int) -> float:
    """The paper's curve with its height set free: peak min(step / warmup, sqrt(warmup / step)).

    >>> [inverse_sqrt(step, peak=1.0, warmup=4) for step in (1, 2, 4, 16, 64)]
    [0.25, 0.5, 1.0, 0.5, 0.25]
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def cosine(step: int, peak: float, warmup: int, total: int, floor: float = 0.0) -> float:
    """After the warm-up, half a cosine from the peak down to the floor, reached at the last step.

    >>> [round(cosine(step, peak=1.0, warmup=2, total=10), 3) for step in (1, 2, 6, 10)]
    [0.5, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return peak * step / warmup
    progress = (step - warmup) / (total - warmup)           # from 0 to 1
    return floor + (peak - floor) * (1 + math.cos(math.pi * progress)) / 2


def warmup_stable_decay(step: int, peak: float, warmup: int, decay: int, total: int, floor: float = 0.0) -> float:
    """After the warm-up, the peak until `decay` steps before the end, then a straight line down to the floor.

    >>> [warmup_stable_decay(step, peak=1.0, warmup=2, decay=4, total=10) for step in (1, 2, 6, 7, 10)]
    [0.5, 1.0, 1.0, 0.75, 0.0]
    """
    if step < warmup:
        return peak * step / warmup
    remaining = min(1.0, (total - step) / decay)            # 1 while stable, then down to 0
    return floor + (peak - floor) * remaining
