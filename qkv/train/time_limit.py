"""Time limit of a training run: choose the number of steps so that the run, schedule included, ends in time.

The first steps are timed. As long as the learning rate of the steps taken does not depend on the total, the total is
chosen anew after each step; where it begins to depend on it, the total is fixed and recorded in train.yaml as `steps`.
Repeating the run with these `steps` therefore gives the same weights. If the machine becomes slow in the decay, the rest of
the decay is shortened and recorded as `decay_changes`. Explained in docs/training.md, "A time limit".
"""

from dataclasses import replace

from qkv.errors import QkvError
from qkv.messages import _
from qkv.train.recipe import Recipe
from qkv.train.report import Pace
from qkv.train.schedule import share_of_peak

SLOW_STEPS = 3  # the first steps allocate memory, the very first may compile the native library: they are not timed
TIMED_STEPS = 7  # then so many are timed before the first estimate
FIRST_FRACTION = 0.5  # on a very slow machine the estimate is made after this fraction of the limit
RECENT_STEPS = 30  # whose mean speed tells in the decay whether the limit will be kept
RESERVE = (
    0.1  # fraction of the limit kept for validations and checkpoints until they have been measured
)


def check_time_limit(recipe: Recipe) -> None:
    """A schedule whose every step depends on the total leaves nothing to choose."""
    falls_at_once = recipe.schedule == "wsd" and recipe.decay_share == 1
    if recipe.max_minutes and (recipe.schedule == "cosine" or falls_at_once):
        given = "schedule wsd, decay_share 1" if falls_at_once else "schedule cosine"
        wrong = _("with {given} every learning rate depends on the number of steps", given=given)
        raise QkvError(
            "max_minutes",
            wrong,
            _("use wsd with decay_share below 1, constant, inverse_sqrt or paper"),
        )


class TimeLimit:
    """The steps of one process of a run under `max_minutes`; `least` steps are taken in any case."""

    def __init__(self, recipe: Recipe, d_model: int, least: int = 1):
        self.recipe, self.d_model, self.least = recipe, d_model, least
        self.expected = recipe.steps
        self.start = (0, 0.0)  # steps and working seconds after which steps are timed
        self.seconds_per_step = 0.0

    def chosen(self, recipe: Recipe, step: int, pace: Pace, earlier: float) -> Recipe:
        """The recipe to go on with after this step: the same object where nothing changes."""
        if recipe.max_minutes:
            steps = self.fixed(step, pace, earlier)
            steps = recipe.steps if step == recipe.steps else steps
            return replace(recipe, steps=steps, max_minutes=0.0) if steps else recipe
        steps = self.shortened(recipe, step, pace, earlier)
        return (
            replace(
                recipe, steps=steps, decay_changes=(*recipe.decay_changes, (step, recipe.steps))
            )
            if steps
            else recipe
        )

    def shortened(self, recipe: Recipe, step: int, pace: Pace, earlier: float) -> int | None:
        """A smaller total for a run in its decay that would exceed the limit at the speed of the last steps, else None."""
        self.expected, recent = recipe.steps, list(pace.marks)[-RECENT_STEPS - 1 :]
        per_step = (recent[-1][0] - recent[0][0]) / max(1, len(recent) - 1)
        limit, spent = 60 * self.recipe.max_minutes, earlier + pace.seconds + pace.longest_pause
        if recipe.schedule != "wsd" or spent + (recipe.steps - step) * per_step <= limit:
            return None
        fitting = step + int(((1 - RESERVE / 2) * limit - spent) / max(per_step, 1e-9))
        self.expected, self.seconds_per_step = max(self.least, step + 1, fitting), per_step
        return self.expected if self.expected < recipe.steps else None

    def fixed(self, step: int, pace: Pace, earlier: float) -> int | None:
        """The total after this step if it must be fixed now, else None; `earlier` seconds were spent before a resume."""
        if not self._timed(pace, earlier):
            return None
        self.expected = self._estimate(step, pace, earlier)
        ends = step + 1 >= self.expected
        changes = self._share(self.expected, step + 1) != self._share(self.recipe.steps, step + 1)
        return self._consistent(self.expected, step) if ends or changes else None

    def text(self, steps: int) -> str:
        """What was chosen, for people."""
        limit, speed = f"{self.recipe.max_minutes:g}", f"{self.seconds_per_step:.2f}"
        return _(
            "time limit {limit} min: {steps} of {steps2} steps ({speed} s a step)",
            limit=limit,
            steps=steps,
            steps2=self.recipe.steps,
            speed=speed,
        )

    def _timed(self, pace: Pace, earlier: float) -> bool:
        if pace.steps == SLOW_STEPS:
            self.start = pace.steps, pace.seconds - pace.idle
        late = pace.seconds + earlier > FIRST_FRACTION * 60 * self.recipe.max_minutes
        return pace.steps >= SLOW_STEPS + TIMED_STEPS or (late and pace.steps > SLOW_STEPS)

    def _estimate(self, step: int, pace: Pace, earlier: float) -> int:
        """How many steps fit, at the mean speed since the first ones, with room for what is not a step."""
        steps, seconds = self.start
        self.seconds_per_step = (pace.seconds - pace.idle - seconds) / (pace.steps - steps)
        limit = 60 * self.recipe.max_minutes
        reserve = max(RESERVE * limit - pace.idle, pace.longest_pause)
        left = (limit - earlier - pace.seconds - reserve) / max(self.seconds_per_step, 1e-9)
        return min(self.recipe.steps, max(self.least, step + 1, step + int(left)))

    def _share(self, steps: int, step: int) -> float:
        return share_of_peak(replace(self.recipe, steps=steps), self.d_model, step)

    def _consistent(self, steps: int, step: int) -> int:
        """The smallest total from `steps` on under which the steps so far had the learning rates they had."""
        while steps < self.recipe.steps and self._share(steps, step) != self._share(
            self.recipe.steps, step
        ):
            steps += 1
        return steps
