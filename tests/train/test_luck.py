"""Draws depend on the recipe's seed and on the step, in what torch's generators make of them."""

import math

import torch

from qkv.train.loop import Trainer
from qkv.train.luck import luck_at
from qkv.train.report import Reporter


def first_draws(*numbers: int) -> tuple[float, ...]:
    return tuple(
        torch.rand(
            4, dtype=torch.float64, generator=torch.Generator().manual_seed(luck_at(*numbers))
        ).tolist()
    )


def test_every_seed_and_every_step_has_draws_of_its_own():
    places = [(seed, step) for seed in (0, 1, 2, 1 << 32, 1 << 40) for step in range(1, 201)]
    assert len({first_draws(*place) for place in places}) == len(places)
    assert first_draws(1, 2) != first_draws(2, 1)


def test_the_same_place_has_the_same_draws():
    assert first_draws(3, 17) == first_draws(3, 17)


def test_what_a_step_draws_depends_on_the_seed_and_the_step(make_task, tmp_path):
    drawn = []
    for run, seed in enumerate((1, 2, 1)):
        task, folder = make_task(f"data-{run}", seed=seed), tmp_path / f"run-{run}"
        folder.mkdir()
        trainer = Trainer(task, task.recipe, folder)
        own = []
        trainer.gradients = lambda batches, predicted, own=own: (
            own.append(tuple(torch.rand(4).tolist())) or math.nan
        )
        with Reporter(folder, 2) as trainer.reporter:
            trainer.step()
            trainer.step()
        drawn.append(own)
    assert drawn[0] == drawn[2] and len({*drawn[0], *drawn[1]}) == 4
