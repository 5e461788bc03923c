"""Learning-rate schedules: the factor on the peak learning rate at each step.

The formulas are in textbook/schedule.py.
See docs/explanation/training.md, "Learning rate schedule".
"""

import math
from dataclasses import replace

from qkv.train.recipe import Recipe


def lr_factor(recipe: Recipe, d_model: int, step: int) -> float:
    """The factor on the learning rate at this step, from 1; for `paper`, its formula."""
    assert step >= 1
    warmup_steps = max(1, recipe.warmup_steps)
    warmup = min(1.0, step / warmup_steps)
    match recipe.schedule:
        case "paper":
            return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
        case "inverse_sqrt":
            return min(warmup, math.sqrt(warmup_steps / step))
        case "cosine":
            # 0 at the peak, 1 at the end
            progress = max(0, step - warmup_steps) / max(1, recipe.steps - warmup_steps)
            return min(warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
        case "wsd":
            return wsd(recipe, step)
        case "constant":
            return warmup


def wsd(recipe: Recipe, step: int) -> float:
    """Warmup, stable phase, linear decay to 0; `decay_changes` move the end of the decay."""
    steps = recipe.steps
    if not recipe.decay_changes:
        warmup = min(1.0, step / max(1, recipe.warmup_steps))
        return min(warmup, (steps - step) / max(1.0, recipe.decay_fraction * steps))
    *changes, (change, total) = recipe.decay_changes
    earlier = replace(recipe, steps=total, decay_changes=tuple(changes))
    if step <= change:
        return wsd(earlier, step)
    return wsd(earlier, change) * (steps - step) / (steps - change)
