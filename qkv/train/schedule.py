"""Learning-rate schedules: the factor on the peak learning rate at each step.

The formulas are in textbook/schedule.py. See docs/training.md, "Learning rate schedule".
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
    totals = [*(total for _, total in recipe.decay_changes), recipe.steps]
    warmup = min(1.0, step / max(1, recipe.warmup_steps))
    factor = min(warmup, (totals[0] - step) / max(1.0, recipe.decay_fraction * totals[0]))
    for number, (change, _) in enumerate(recipe.decay_changes, start=1):
        if step > change:
            earlier = replace(
                recipe, steps=totals[number - 1], decay_changes=recipe.decay_changes[: number - 1]
            )
            factor = wsd(earlier, change) * (totals[number] - step) / (totals[number] - change)
    return factor
