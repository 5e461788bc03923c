"""max_minutes: the steps that fit into a time limit, recorded so that the run can be repeated bit for bit."""

from dataclasses import replace

import pytest
import torch
import yaml

from qkv.checkpoint.folder import load_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.train.loop import Trainer, state_to_resume
from qkv.train.prepare import prepare_translation
from qkv.train.recipe import TranslateRecipe
from qkv.train.report import Pace, read_metrics
from qkv.train.schedule import share_of_peak
from qkv.train.time_limit import TimeLimit

LIMITED = {
    "steps": 40,
    "warmup": 4,
    "decay_share": 0.5,
    "save_every": 15,
    "validate_every": 15,
    "valid_bleu": False,
}


class Clock:
    """A clock that only work moves: so many seconds a step, so many a validation."""

    def __init__(self, step: float, validation: float = 0.0):
        self.now, self.seconds, self.validation = 0.0, step, validation

    def __call__(self) -> float:
        return self.now


def trained(tiny_recipe, folder, clock, resume=False, until=None, **changes) -> Trainer:
    """A run whose steps and validations take the clock's seconds; `until`: stopped after that step, as by a signal."""
    recipe = tiny_recipe(**{**LIMITED, **changes})
    folder.mkdir(exist_ok=True)
    trainer = Trainer(
        prepare_translation(recipe, folder.parent / "data"),
        recipe,
        folder,
        state_to_resume(folder, resume),
        clock,
    )
    batch, validate = trainer.task.batch, trainer.task.validate

    def timed_batch(*given):
        clock.now += clock.seconds(given[0]) if callable(clock.seconds) else clock.seconds
        return batch(*given)

    def timed_validate(model):
        clock.now += clock.validation
        return validate(model)

    trainer.task.batch, trainer.task.validate = timed_batch, timed_validate
    if until is not None:
        recipe = trainer.recipe
        real, trainer.fit_steps = trainer.fit_steps, lambda: (real(), stop(trainer, until))
    assert trainer.run() == 0
    return trainer


class Stopped(Exception):
    pass


def stop(trainer, until):
    if trainer.progress.step == until:
        trainer.save()
        raise Stopped


def weights(folder):
    return load_model(folder).model.state_dict()


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def recorded(folder):
    return yaml.safe_load((folder / "train.yaml").read_text())


@pytest.mark.parametrize("seconds, least, most", [(1.0, 40, 40), (2.0, 24, 27), (2.5, 20, 22)])
def test_slower_steps_are_fewer_steps_within_the_limit(tiny_recipe, tmp_path, seconds, least, most):
    clock = Clock(seconds)
    trainer = trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1)
    assert least <= trainer.progress.step <= most
    assert clock.now <= 60
    told = recorded(tmp_path / "run")
    assert (told["steps"], told["max_minutes"]) == (trainer.progress.step, 0)


def test_repeating_with_the_recorded_steps_gives_the_same_weights_and_figures(
    tiny_recipe, tmp_path
):
    trainer = trained(tiny_recipe, tmp_path / "run", Clock(2.0), max_minutes=1)
    steps = recorded(tmp_path / "run")["steps"]
    assert 10 < steps < 40
    trained(tiny_recipe, tmp_path / "again", Clock(0.1), steps=steps)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))
    first, second = (
        [
            {name: one[name] for name in ("step", "kind", "loss", "lr") if name in one}
            for one in read_metrics(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("run", "again")
    )
    assert first == second and first[-1]["step"] == trainer.progress.step


def test_validations_count(tiny_recipe, tmp_path):
    quick, slow = Clock(1.0, validation=0.0), Clock(1.0, validation=8.0)
    many = trained(
        tiny_recipe, tmp_path / "many", quick, max_minutes=0.7, validate_every=5
    ).progress.step
    few = trained(
        tiny_recipe, tmp_path / "few", slow, max_minutes=0.7, validate_every=5
    ).progress.step
    assert few < many
    assert quick.now <= 42


def test_a_machine_that_becomes_slow_before_the_decay_takes_fewer_steps(tiny_recipe, tmp_path):
    clock = Clock(lambda step: 1.0 if step < 12 else 4.0)
    steps = trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step
    assert (
        steps
        < trained(tiny_recipe, tmp_path / "other", Clock(1.0), max_minutes=1).progress.step
        == 40
    )


@pytest.mark.parametrize("slower", [3.0, 5.0])
def test_a_machine_that_becomes_slow_in_the_decay_shortens_it(tiny_recipe, tmp_path, slower):
    clock = Clock(
        lambda step: 1.0 if step < 25 else slower
    )  # the decay of 40 steps begins after step 20
    trainer = trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1)
    told = recorded(tmp_path / "run")
    assert told["steps"] == trainer.progress.step < 40 and told["decay_changes"][0][1] == 40
    assert clock.now <= 60 + slower
    lrs = [share_of_peak(trainer.recipe, 64, step) for step in range(20, trainer.progress.step + 1)]
    assert lrs == sorted(lrs, reverse=True) and lrs[-1] == 0  # it falls all the way, only faster
    again = {"steps": told["steps"], "decay_changes": tuple(map(tuple, told["decay_changes"]))}
    trained(tiny_recipe, tmp_path / "again", Clock(0.1), **again)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


def test_a_resumed_run_keeps_a_shortened_decay(tiny_recipe, tmp_path):
    clock = Clock(lambda step: 1.0 if step < 25 else 4.0)
    with pytest.raises(Stopped):
        trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1, until=31)
    trained(tiny_recipe, tmp_path / "run", Clock(1.0), resume=True, max_minutes=1)
    told = recorded(tmp_path / "run")
    again = {"steps": told["steps"], "decay_changes": tuple(map(tuple, told["decay_changes"]))}
    assert told["steps"] < 40 and again["decay_changes"]
    trained(tiny_recipe, tmp_path / "again", Clock(0.1), **again)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


def test_a_changed_decay_goes_on_from_where_it_was():
    recipe = TranslateRecipe(
        steps=80, warmup=10, decay_share=0.5, decay_changes=((60, 100), (70, 90))
    )
    whole = replace(recipe, steps=100, decay_changes=())
    share = [share_of_peak(recipe, 64, step) for step in range(1, 81)]
    assert share[:60] == [share_of_peak(whole, 64, step) for step in range(1, 61)]
    assert (
        share[59] == pytest.approx(0.8)
        and share[69] == pytest.approx(0.8 * 20 / 30)
        and share[74] == pytest.approx(share[69] / 2)
    )
    assert share[79] == 0


def test_a_first_step_that_stalls_does_not_end_the_run(tiny_recipe, tmp_path):
    """Measured on a busy machine: the first step compiled the native library for a third of the limit, and two steps were chosen."""
    clock = Clock(lambda step: 35.0 if step == 0 else 0.4)
    steps = trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step
    assert steps == 40 and clock.now <= 60


def test_a_very_slow_machine_does_not_wait_for_ten_steps(tiny_recipe, tmp_path):
    clock = Clock(20.0)
    assert trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step < 10


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "paper"])
def test_schedules_that_never_ask_for_the_total_use_the_whole_limit(
    tiny_recipe, tmp_path, schedule
):
    clock = Clock(2.0)
    trainer = trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1, schedule=schedule)
    assert 25 <= trainer.progress.step <= 27 and clock.now <= 60
    assert recorded(tmp_path / "run")["steps"] == trainer.progress.step
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == trainer.progress.step


@pytest.mark.parametrize("until", [6, 22], ids=["before the total is fixed", "after"])
def test_a_resumed_run_keeps_the_limit_and_the_learning_rates(tiny_recipe, tmp_path, until):
    clock = Clock(2.0)
    with pytest.raises(Stopped):
        trained(tiny_recipe, tmp_path / "run", clock, max_minutes=1, until=until)
    resumed = trained(tiny_recipe, tmp_path / "run", clock, resume=True, max_minutes=1)
    told = recorded(tmp_path / "run")
    assert resumed.progress.step == told["steps"] < 40 and clock.now <= 60
    trained(
        tiny_recipe,
        tmp_path / "again",
        Clock(0.1),
        steps=told["steps"],
        decay_changes=tuple(map(tuple, told["decay_changes"])),
    )
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


@pytest.mark.parametrize("steps", [30, 100, 600])
@pytest.mark.parametrize("decay_share", [0.0, 0.3, 0.7, 0.95])
def test_what_was_learned_so_far_had_the_learning_rates_of_the_chosen_total(steps, decay_share):
    recipe = TranslateRecipe(steps=steps, warmup=20, decay_share=decay_share, max_minutes=1)
    now = [0.0]
    pace = Pace(lambda: now[0])
    limit, fixed, step = TimeLimit(recipe, 64), None, 0
    while fixed is None and step < steps:
        step += 1
        now[0] += 0.5 if step < 15 else 2.0  # slower and slower, at the worst moment
        pace.step(1)
        fixed = limit.fixed(step, pace, 0.0)
    chosen = replace(recipe, steps=fixed or steps)
    assert [share_of_peak(chosen, 64, n) for n in range(1, step + 1)] == [
        share_of_peak(recipe, 64, n) for n in range(1, step + 1)
    ]


@pytest.mark.parametrize(
    "settings, given",
    [(["schedule=cosine"], "schedule cosine"), (["decay_share=1"], "schedule wsd, decay_share 1")],
)
def test_a_schedule_that_needs_the_total_from_the_start_is_refused(tmp_path, settings, given):
    flags = [part for setting in ["max_minutes=1", *settings] for part in ("--set", setting)]
    with pytest.raises(QkvError) as error:
        run(["train", "translate", "--source", "no.tsv", "--out", str(tmp_path / "run"), *flags])
    assert str(error.value) == (
        f"max_minutes: with {given} every learning rate depends on the number of steps; "
        "use wsd with decay_share below 1, constant, inverse_sqrt or paper"
    )
    assert not (tmp_path / "run").exists()
