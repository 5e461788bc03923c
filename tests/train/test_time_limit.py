"""max_minutes: the number of steps that fits is recorded, and a repeated run is identical."""

from dataclasses import replace

import pytest
import torch
import yaml

from qkv.checkpoint.folder import load_model
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.train.loop import Trainer
from qkv.train.metrics import read_metrics
from qkv.train.prepare import prepare_translation
from qkv.train.prepare_embed import prepare_embedding
from qkv.train.prepare_text import prepare_generation
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.report import Throughput
from qkv.train.resume import state_to_resume
from qkv.train.schedule import lr_factor
from qkv.train.time_limit import TimeLimit
from qkv.train.translation import TranslationTask

LIMITED = {
    "steps": 40,
    "warmup_steps": 4,
    "decay_fraction": 0.5,
    "save_every": 15,
    "validate_every": 15,
    "valid_bleu": False,
    "beam_size": 1,
}


class Clock:
    """A clock advanced by fixed seconds per step and per validation."""

    def __init__(self, step: float, validation: float = 0.0):
        self.now, self.seconds, self.validation = 0.0, step, validation

    def __call__(self) -> float:
        return self.now


def train(
    tiny_recipe, folder, clock, resume=False, until=None, preparation=0.0, **changes
) -> Trainer:
    """A run timed by the clock, after `preparation` seconds; `until`: stopped after this step."""
    recipe = tiny_recipe(**{**LIMITED, **changes})
    folder.mkdir(exist_ok=True)
    trainer = Trainer(
        prepare_translation(recipe, folder.parent / "data"),
        recipe,
        folder,
        state_to_resume(folder, resume),
        clock,
    )
    trainer.preparation = preparation
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
        apply, trainer.apply_time_limit = (
            trainer.apply_time_limit,
            lambda: (apply(), stop(trainer, until)),
        )
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
def test_slower_steps_give_fewer_steps_within_the_limit(
    tiny_recipe, tmp_path, seconds, least, most
):
    clock = Clock(seconds)
    trainer = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1)
    assert least <= trainer.progress.step <= most
    assert clock.now <= 60
    record = recorded(tmp_path / "run")
    assert (record["steps"], record["max_minutes"]) == (trainer.progress.step, 0)


def test_repeating_with_the_recorded_steps_gives_the_same_weights_and_metrics(
    tiny_recipe, tmp_path
):
    trainer = train(tiny_recipe, tmp_path / "run", Clock(2.0), max_minutes=1)
    steps = recorded(tmp_path / "run")["steps"]
    assert 10 < steps < 40
    train(tiny_recipe, tmp_path / "again", Clock(0.1), steps=steps)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))
    first, second = (
        [
            {name: entry[name] for name in ("step", "kind", "loss", "lr") if name in entry}
            for entry in read_metrics(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("run", "again")
    )
    assert first == second and first[-1]["step"] == trainer.progress.step


def test_validations_count_in_the_time_limit(tiny_recipe, tmp_path):
    quick, slow = Clock(1.0, validation=0.0), Clock(1.0, validation=8.0)
    many = train(
        tiny_recipe, tmp_path / "many", quick, max_minutes=0.7, validate_every=5
    ).progress.step
    few = train(
        tiny_recipe, tmp_path / "few", slow, max_minutes=0.7, validate_every=5
    ).progress.step
    assert few < many
    assert quick.now <= 42


def test_a_machine_that_becomes_slow_before_the_decay_takes_fewer_steps(tiny_recipe, tmp_path):
    clock = Clock(lambda step: 1.0 if step < 12 else 4.0)
    steps = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step
    assert (
        steps
        < train(tiny_recipe, tmp_path / "other", Clock(1.0), max_minutes=1).progress.step
        == 40
    )


@pytest.mark.parametrize("slower", [3.0, 5.0])
def test_a_machine_that_becomes_slow_in_the_decay_shortens_it(tiny_recipe, tmp_path, slower):
    clock = Clock(
        lambda step: 1.0 if step < 25 else slower
    )  # the decay of 40 steps begins after step 20
    trainer = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1)
    record = recorded(tmp_path / "run")
    assert record["steps"] == trainer.progress.step < 40 and record["decay_changes"][0][1] == 40
    assert clock.now <= 60 + slower
    lrs = [lr_factor(trainer.recipe, 64, step) for step in range(20, trainer.progress.step + 1)]
    assert lrs == sorted(lrs, reverse=True) and lrs[-1] == 0  # the decay is complete, but faster
    again = {"steps": record["steps"], "decay_changes": tuple(map(tuple, record["decay_changes"]))}
    train(tiny_recipe, tmp_path / "again", Clock(0.1), **again)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


def test_a_resumed_run_keeps_a_shortened_decay(tiny_recipe, tmp_path):
    clock = Clock(lambda step: 1.0 if step < 25 else 4.0)
    with pytest.raises(Stopped):
        train(tiny_recipe, tmp_path / "run", clock, max_minutes=1, until=31)
    train(tiny_recipe, tmp_path / "run", Clock(1.0), resume=True, max_minutes=1)
    record = recorded(tmp_path / "run")
    again = {"steps": record["steps"], "decay_changes": tuple(map(tuple, record["decay_changes"]))}
    assert record["steps"] < 40 and again["decay_changes"]
    train(tiny_recipe, tmp_path / "again", Clock(0.1), **again)
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


def test_a_changed_decay_is_continuous():
    recipe = TranslateRecipe(
        steps=80, warmup_steps=10, decay_fraction=0.5, decay_changes=((60, 100), (70, 90))
    )
    whole = replace(recipe, steps=100, decay_changes=())
    factor = [lr_factor(recipe, 64, step) for step in range(1, 81)]
    assert factor[:60] == [lr_factor(whole, 64, step) for step in range(1, 61)]
    assert (
        factor[59] == pytest.approx(0.8)
        and factor[69] == pytest.approx(0.8 * 20 / 30)
        and factor[74] == pytest.approx(factor[69] / 2)
    )
    assert factor[79] == 0


@pytest.mark.parametrize("schedule", ["wsd", "constant"])
@pytest.mark.parametrize("preparation", [0, 15, 25])
def test_preparation_counts_in_the_limit(tiny_recipe, tmp_path, schedule, preparation):
    clock = Clock(1.0)
    settings = {"max_minutes": 1, "steps": 100, "schedule": schedule, "preparation": preparation}
    trainer = train(tiny_recipe, tmp_path / "run", clock, **settings)
    assert 45 - preparation <= trainer.progress.step <= 60 - preparation
    assert preparation + clock.now <= 60


def evaluation_seconds(trainer, seconds_per_step: float) -> float:
    """The time of the final evaluation at the speed of the steps, which have 270 to 400 tokens."""
    return trainer.task.evaluation_tokens()[1] * seconds_per_step / 400


@pytest.mark.parametrize("schedule", ["wsd", "constant"])
def test_time_is_reserved_for_the_final_evaluation(tiny_recipe, tmp_path, schedule):
    clock = Clock(1.0)
    settings = {"max_minutes": 1, "steps": 100, "schedule": schedule, "beam_size": 20}
    trainer = train(tiny_recipe, tmp_path / "run", clock, **settings)
    needed = evaluation_seconds(trainer, 1.0)
    assert needed > 12 and clock.now + needed <= 60
    assert trainer.progress.step > 25


@pytest.mark.parametrize("schedule", ["wsd", "constant"])
def test_slow_validations_predict_a_slow_final_evaluation(tiny_recipe, tmp_path, schedule):
    clock = Clock(0.5, validation=3.0)
    settings = {"max_minutes": 1, "steps": 200, "schedule": schedule, "validate_every": 10}
    settings |= {"valid_bleu": True, "beam_size": 4}
    trainer = train(tiny_recipe, tmp_path / "run", clock, **settings)
    validation, evaluation = trainer.task.evaluation_tokens()
    assert 2 < evaluation / validation < 4
    assert clock.now + 3.0 * evaluation / validation <= 60


def test_a_final_evaluation_of_any_length_leaves_half_of_the_limit_for_steps(
    tiny_recipe, tmp_path, monkeypatch
):
    clock = Clock(1.0)
    monkeypatch.setattr(TranslationTask, "evaluation_tokens", lambda task: (0.0, 1e12))
    trainer = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1, steps=100)
    assert 28 <= trainer.progress.step <= 30


def test_each_task_estimates_its_evaluation_from_its_held_out_text(tiny_recipe, tmp_path):
    recipe = tiny_recipe()
    translation = prepare_translation(recipe, tmp_path / "translate")
    n_tokens = sum(int(lengths.sum()) for lengths in translation.valid.lengths(0))
    assert translation.evaluation_tokens() == (n_tokens / 3, recipe.beam_size * n_tokens)
    text = GenerateRecipe(text=(recipe.source,), tokenizer="char", context_length=16)
    generation = prepare_generation(replace(text, batch_tokens=64), tmp_path / "generate")
    assert generation.evaluation_tokens() == (2 * len(generation.valid.ids) / 3,) * 2
    pairs = EmbedRecipe(source=recipe.source, target=recipe.target, tokenizer="char")
    embedding = prepare_embedding(pairs, tmp_path / "embed")
    n_tokens = int(embedding.valid.ids.lengths.sum()) + 2 * len(embedding.valid.ids)
    assert embedding.evaluation_tokens() == (n_tokens / 3, n_tokens / 3)


def test_a_slow_first_step_does_not_end_the_run(tiny_recipe, tmp_path):
    """On a busy machine the first step compiled the native library for a third of the limit."""
    clock = Clock(lambda step: 35.0 if step == 0 else 0.4)
    steps = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step
    assert steps == 40 and clock.now <= 60


def test_a_very_slow_machine_does_not_wait_for_ten_steps(tiny_recipe, tmp_path):
    clock = Clock(20.0)
    assert train(tiny_recipe, tmp_path / "run", clock, max_minutes=1).progress.step < 10


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "paper"])
def test_schedules_without_a_total_use_the_whole_limit(tiny_recipe, tmp_path, schedule):
    clock = Clock(2.0)
    trainer = train(tiny_recipe, tmp_path / "run", clock, max_minutes=1, schedule=schedule)
    assert 25 <= trainer.progress.step <= 27 and clock.now <= 60
    assert recorded(tmp_path / "run")["steps"] == trainer.progress.step
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == trainer.progress.step


@pytest.mark.parametrize("until", [6, 22], ids=["before the total is fixed", "after"])
def test_a_resumed_run_keeps_the_limit_and_the_learning_rates(tiny_recipe, tmp_path, until):
    clock = Clock(2.0)
    with pytest.raises(Stopped):
        train(tiny_recipe, tmp_path / "run", clock, max_minutes=1, until=until)
    resumed = train(tiny_recipe, tmp_path / "run", clock, resume=True, max_minutes=1)
    record = recorded(tmp_path / "run")
    assert resumed.progress.step == record["steps"] < 40 and clock.now <= 60
    train(
        tiny_recipe,
        tmp_path / "again",
        Clock(0.1),
        steps=record["steps"],
        decay_changes=tuple(map(tuple, record["decay_changes"])),
    )
    assert_same(weights(tmp_path / "run"), weights(tmp_path / "again"))


@pytest.mark.parametrize("steps", [30, 100, 600])
@pytest.mark.parametrize("decay_fraction", [0.0, 0.3, 0.7, 0.95])
def test_earlier_steps_have_the_learning_rates_of_the_chosen_total(steps, decay_fraction):
    recipe = TranslateRecipe(
        steps=steps, warmup_steps=20, decay_fraction=decay_fraction, max_minutes=1
    )
    now = [0.0]
    throughput = Throughput(lambda: now[0])
    limit, fixed, step = TimeLimit(recipe, 64), None, 0
    while fixed is None and step < steps:
        step += 1
        now[0] += 0.5 if step < 15 else 2.0  # slower at the worst moment
        throughput.step(1)
        fixed = limit.fixed(step, throughput, 0.0)
    chosen = replace(recipe, steps=fixed or steps)
    assert [lr_factor(chosen, 64, n) for n in range(1, step + 1)] == [
        lr_factor(recipe, 64, n) for n in range(1, step + 1)
    ]


@pytest.mark.parametrize(
    "settings, given",
    [
        (["schedule=cosine"], "schedule cosine"),
        (["decay_fraction=1"], "schedule wsd, decay_fraction 1"),
    ],
)
def test_a_schedule_that_needs_the_total_from_the_start_is_an_error(tmp_path, settings, given):
    flags = [part for setting in ["max_minutes=1", *settings] for part in ("--set", setting)]
    with pytest.raises(QkvError) as error:
        run(["train", "translate", "--source", "no.tsv", "--out", str(tmp_path / "run"), *flags])
    assert str(error.value) == (
        f"max_minutes: with {given} every learning rate depends on the number of steps; "
        "use wsd with decay_fraction below 1, constant, inverse_sqrt or paper"
    )
    assert not (tmp_path / "run").exists()
