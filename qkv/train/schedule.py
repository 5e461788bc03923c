"""The learning rate over time.

In: a recipe and the width of the model. Out: for each step (the first is 1) the share of the peak learning rate.
The formulas stand in textbook/schedule.py; told in docs/training.md, "The learning rate".
"""

import math

from qkv.train.recipe import Recipe


def share_of_peak(recipe: Recipe, d_model: int, step: int) -> float:
    """The factor on the learning rate at this step; with `paper` it is the paper's formula itself."""
    assert step >= 1
    rise = min(1.0, step / max(1, recipe.warmup))
    after = max(0.0, step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)  # 0 at the peak, 1 at the end
    match recipe.schedule:
        case "paper": return d_model**-0.5 * min(step**-0.5, step * recipe.warmup**-1.5)
        case "inverse_sqrt": return min(rise, math.sqrt(max(1, recipe.warmup) / step))
        case "cosine": return rise if step <= recipe.warmup else 0.5 * (1 + math.cos(math.pi * after))
        case "constant": return rise
        case "wsd":
            left = (recipe.steps - step + 1) / max(1.0, recipe.decay_share * recipe.steps)
            return min(rise, left, 1.0)
