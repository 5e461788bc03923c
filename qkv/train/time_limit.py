"""Time limit of a training run: choose the number of steps that fits, schedule included.

The first steps are timed. As long as the learning rate of the steps taken does not depend on the
total, the total is estimated again after each step; where it begins to depend on it, the total is
fixed and recorded in train.yaml as `steps`. Repeating the run with these `steps` therefore gives
the same weights. If the machine becomes slow during the decay, the rest of the decay is shortened
and recorded as `decay_changes`. See docs/guides/training.md.
"""

from dataclasses import replace

from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.recipe import Recipe
from qkv.train.report import Throughput
from qkv.train.schedule import lr_factor
from qkv.train.state import Progress

__all__ = ["TimeLimit"]

# The first steps are not timed: they allocate memory and may compile the native library.
UNTIMED_STEPS = 3
TIMED_STEPS = 7  # the number of steps timed before the first estimate
FIRST_FRACTION = 0.5  # on a very slow machine the estimate is made after this fraction of the limit
RECENT_STEPS = 30  # steps whose mean speed is compared with the limit during the decay
# Fraction of the limit reserved for validations and checkpoints until they have been measured.
RESERVED_FRACTION = 0.1


def check_time_limit(recipe: Recipe) -> None:
    """A schedule in which every learning rate depends on the total cannot have a time limit."""
    decays_at_once = recipe.schedule == "wsd" and recipe.decay_fraction == 1
    if recipe.max_minutes and (recipe.schedule == "cosine" or decays_at_once):
        given = "schedule wsd, decay_fraction 1" if decays_at_once else "schedule cosine"
        wrong = _("with {given} every learning rate depends on the number of steps", given=given)
        right = _("use wsd with decay_fraction below 1, constant, inverse_sqrt or paper")
        raise QkvError("max_minutes", wrong, right)


def resumed_recipe(recipe: Recipe, progress: Progress) -> Recipe:
    """The recipe with the number of steps that an earlier process has fixed, if it has."""
    if not (progress.steps and recipe.max_minutes):
        return recipe
    changes = tuple((step, total) for step, total in progress.decay_changes)
    return replace(recipe, steps=progress.steps, max_minutes=0.0, decay_changes=changes)


class TimeLimit:
    """The number of steps of a process under `max_minutes`.

    Args:
        recipe: The recipe with the limit and the maximum number of steps.
        d_model: The width of the model, for the schedule `paper`.
        min_steps: The minimum number of steps.
    """

    def __init__(self, recipe: Recipe, d_model: int, min_steps: int = 1):
        self.recipe, self.d_model, self.min_steps = recipe, d_model, min_steps
        self.expected = recipe.steps
        self.start = (0, 0.0)  # steps and working seconds when timing starts
        self.seconds_per_step = 0.0

    def updated(self, recipe: Recipe, step: int, throughput: Throughput, earlier: float) -> Recipe:
        """The recipe to continue with after this step: the same object if nothing changes."""
        if recipe.max_minutes:
            steps = self.fixed(step, throughput, earlier)
            steps = recipe.steps if step == recipe.steps else steps
            return replace(recipe, steps=steps, max_minutes=0.0) if steps else recipe
        steps = self.shortened(recipe, step, throughput, earlier)
        if not steps:
            return recipe
        changes = (*recipe.decay_changes, (step, recipe.steps))
        return replace(recipe, steps=steps, decay_changes=changes)

    def shortened(
        self, recipe: Recipe, step: int, throughput: Throughput, earlier: float
    ) -> int | None:
        """A smaller total if the decay would exceed the limit at the recent speed, else None."""
        self.expected, recent = recipe.steps, list(throughput.recent)[-RECENT_STEPS - 1 :]
        per_step = (recent[-1][0] - recent[0][0]) / max(1, len(recent) - 1)
        limit = 60 * self.recipe.max_minutes
        spent = earlier + throughput.seconds + throughput.longest_pause
        if recipe.schedule != "wsd" or spent + (recipe.steps - step) * per_step <= limit:
            return None
        fitting = step + int(((1 - RESERVED_FRACTION / 2) * limit - spent) / max(per_step, 1e-9))
        self.expected, self.seconds_per_step = max(self.min_steps, step + 1, fitting), per_step
        return self.expected if self.expected < recipe.steps else None

    def fixed(self, step: int, throughput: Throughput, earlier: float) -> int | None:
        """The total if it must be fixed after this step, else None.

        Args:
            step: The last step.
            throughput: The speed of this process.
            earlier: Seconds spent before the run was resumed.
        """
        if not self._is_timed(throughput, earlier):
            return None
        self.expected = self._estimate(step, throughput, earlier)
        ends = step + 1 >= self.expected
        changes = self._factor(self.expected, step + 1) != self._factor(self.recipe.steps, step + 1)
        return self._consistent(self.expected, step) if ends or changes else None

    def text(self, steps: int) -> str:
        """A line that reports the chosen number of steps."""
        return _(
            "time limit {limit} min: {steps} of {max_steps} steps ({speed} s per step)",
            limit=f"{self.recipe.max_minutes:g}",
            steps=steps,
            max_steps=self.recipe.steps,
            speed=f"{self.seconds_per_step:.2f}",
        )

    def _is_timed(self, throughput: Throughput, earlier: float) -> bool:
        if throughput.steps == UNTIMED_STEPS:
            self.start = throughput.steps, throughput.seconds - throughput.idle
        late = throughput.seconds + earlier > FIRST_FRACTION * 60 * self.recipe.max_minutes
        steps = throughput.steps
        return steps >= UNTIMED_STEPS + TIMED_STEPS or (late and steps > UNTIMED_STEPS)

    def _estimate(self, step: int, throughput: Throughput, earlier: float) -> int:
        """The total that fits at the mean speed of the timed steps, with a reserve for the rest."""
        steps, seconds = self.start
        working = throughput.seconds - throughput.idle - seconds
        self.seconds_per_step = working / (throughput.steps - steps)
        limit = 60 * self.recipe.max_minutes
        reserve = max(RESERVED_FRACTION * limit - throughput.idle, throughput.longest_pause)
        left = (limit - earlier - throughput.seconds - reserve) / max(self.seconds_per_step, 1e-9)
        return min(self.recipe.steps, max(self.min_steps, step + 1, step + int(left)))

    def _factor(self, steps: int, step: int) -> float:
        return lr_factor(replace(self.recipe, steps=steps), self.d_model, step)

    def _consistent(self, steps: int, step: int) -> int:
        """The smallest total, at least `steps`, with the same learning rate at the current step."""
        factor = self._factor(self.recipe.steps, step)
        while steps < self.recipe.steps and self._factor(steps, step) != factor:
            steps += 1
        return steps
