"""The learning rate over time.

In: a recipe and the width of the model. Out: for each step (the first is 1) the share of the peak learning rate.
The formulas stand in textbook/schedule.py; told in docs/training.md, "The learning rate".
"""

import math
from dataclasses import replace

from qkv.train.recipe import Recipe


def share_of_peak(recipe: Recipe, d_model: int, step: int) -> float:
    """The factor on the learning rate at this step; with `paper` it is the paper's formula itself."""
    assert step >= 1
    warmup = max(1, recipe.warmup)
    rise = min(1.0, step / warmup)
    match recipe.schedule:
        case "paper":
            return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        case "inverse_sqrt":
            return min(rise, math.sqrt(warmup / step))
        case "cosine":
            after = max(0, step - warmup) / max(
                1, recipe.steps - warmup
            )  # 0 at the peak, 1 at the end
            return min(rise, 0.5 * (1 + math.cos(math.pi * min(1.0, after))))
        case "wsd":
            return wsd(recipe, step)
        case "constant":
            return rise


def wsd(recipe: Recipe, step: int) -> float:
    """Rise, stay, fall linearly to 0; each of `decay_changes` makes the rest of the fall end at another total."""
    totals = [*(total for _, total in recipe.decay_changes), recipe.steps]
    rise = min(1.0, step / max(1, recipe.warmup))
    share = min(rise, (totals[0] - step) / max(1.0, recipe.decay_share * totals[0]))
    for number, (change, _) in enumerate(recipe.decay_changes, start=1):
        if step > change:
            earlier = replace(
                recipe, steps=totals[number - 1], decay_changes=recipe.decay_changes[: number - 1]
            )
            share = wsd(earlier, change) * (totals[number] - step) / (totals[number] - change)
    return share
