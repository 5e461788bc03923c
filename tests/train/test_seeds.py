"""Random numbers depend on the recipe's seed and on the step."""

import math

import torch

from qkv.train.loop import Trainer
from qkv.train.report import Reporter
from qkv.train.seeds import derive_seed


def first_uniforms(*numbers: int) -> tuple[float, ...]:
    return tuple(
        torch.rand(
            4, dtype=torch.float64, generator=torch.Generator().manual_seed(derive_seed(*numbers))
        ).tolist()
    )


def test_every_seed_and_step_gives_different_random_numbers():
    pairs = [(seed, step) for seed in (0, 1, 2, 1 << 32, 1 << 40) for step in range(1, 201)]
    assert len({first_uniforms(*pair) for pair in pairs}) == len(pairs)
    assert first_uniforms(1, 2) != first_uniforms(2, 1)


def test_the_same_seed_and_step_give_the_same_random_numbers():
    assert first_uniforms(3, 17) == first_uniforms(3, 17)


def test_random_numbers_of_a_step_depend_on_the_seed_and_the_step(make_task, tmp_path):
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
