"""A run that diverges: it stops after five skipped steps and publishes no unusable model."""

import math
import signal
from dataclasses import replace

import pytest
import torch

import qkv
from qkv.checkpoint.folder import load_model
from qkv.errors import QkvError
from qkv.train import EmbedRecipe, GenerateRecipe
from qkv.train.run_recipe import train_recipe
from qkv.train.state import checkpoint_folder, load_state, newest_state, saved_steps

MODEL = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64}
FIVE_IN_A_ROW = (
    "the loss or the gradient of 5 steps in a row is not finite (training diverged); {right}"
)
START_AGAIN = "there is no earlier checkpoint: start again with a lower lr"


def error_of(run, *arguments) -> str:
    with pytest.raises(QkvError) as error:
        run(*arguments)
    return str(error.value)


def make_infinite(trainer, first: int, last: int = 10**9) -> None:
    """Make the loss of these steps infinite, as if the weights had diverged one step earlier."""
    right = trainer.task.loss
    trainer.task.loss = lambda model, *given, **options: (
        right(model, *given, **options)
        * (math.inf if model.training and first <= trainer.progress.step <= last else 1.0)
    )


def recipes(tiny_recipe):
    tiny = tiny_recipe(lr=1e30, steps=30, save_every=1, validate_every=4, valid_bleu=True)
    shared = {"model": MODEL, "lr": 1e30, "steps": 30, "save_every": 1, "validate_every": 4}
    shared |= {"tokenizer": "char", "threads": 1}
    pairs = {"source": tiny.source, "target": tiny.target}
    return {
        "translate": tiny,
        "generate": GenerateRecipe(
            text=(tiny.source,), context_length=16, batch_tokens=64, **shared
        ),
        "embed": EmbedRecipe(batch_groups=8, **pairs, **shared),
    }


@pytest.mark.parametrize("task", ["translate", "generate", "embed"])
def test_an_absurd_learning_rate_stops_the_run_in_one_line(tiny_recipe, tmp_path, task):
    recipe = recipes(tiny_recipe)[task]
    line = error_of(train_recipe, recipe, tmp_path / "run")
    step = 6 if task == "translate" else int(line.split(":")[0].removeprefix("step "))
    assert line == f"step {step}: {FIVE_IN_A_ROW.format(right=START_AGAIN)}" and step < 12
    assert not (tmp_path / "run" / "model.json").exists() and not saved_steps(tmp_path / "run")
    with pytest.raises(QkvError):
        qkv.load(tmp_path / "run")
    assert train_recipe(replace(recipe, lr=1e-3, steps=2), tmp_path / "run") is not None


def test_the_last_good_checkpoint_and_the_best_model_stay(trainer):
    training = trainer(steps=40, save_every=2, validate_every=8)
    make_infinite(training, first=11)
    checkpoint = checkpoint_folder(training.folder, 8)
    assert error_of(training.run) == "step 15: " + FIVE_IN_A_ROW.format(
        right=f"the last good checkpoint is {checkpoint}: "
        "continue with --resume --accept-changes --set lr=... (lower)"
    )
    # The update of step 10 gave the weights that diverged.
    assert saved_steps(training.folder)[-1] == 8 and newest_state(training.folder).step == 8
    published = load_model(training.folder).model.state_dict()
    kept = load_state(checkpoint).tensors["model"]
    assert all(torch.equal(weight, kept[name]) for name, weight in published.items())


def test_the_checkpoint_that_a_run_was_resumed_from_is_never_deleted(trainer):
    assert trainer(steps=4, save_every=4, validate_every=4).run() == 0
    training = trainer(resume=True, steps=40)
    make_infinite(training, first=5)
    assert "step-000004: continue with --resume" in error_of(training.run)
    assert saved_steps(training.folder) == [4]


def test_four_skipped_steps_do_not_stop_the_run_and_no_checkpoint_is_saved_in_between(trainer):
    training = trainer(steps=12, save_every=1, validate_every=6)
    make_infinite(training, first=3, last=6)
    saved = []
    save = training.save
    training.save = lambda: (saved.append(training.progress.step), save())
    assert training.run() == 0
    assert saved == [1, 2, 7, 8, 9, 10, 11, 12]


def test_the_count_of_skipped_steps_survives_an_interruption(trainer):
    training = trainer(steps=40)
    make_infinite(training, first=8)
    training.on_step = lambda step: signal_after(step.step, 10)
    assert training.run() == 75 and newest_state(training.folder).step == 10
    resumed = trainer(resume=True, steps=40)
    make_infinite(resumed, first=8)
    assert error_of(resumed.run).startswith("step 12: ")


def signal_after(step: int, last: int) -> None:
    if step == last:
        signal.raise_signal(signal.SIGINT)


def test_a_run_that_ends_before_the_fifth_skipped_step_publishes_no_unusable_model(
    tiny_recipe, tmp_path
):
    recipe = tiny_recipe(lr=1e30, steps=3, validate_every=1, valid_bleu=True)
    assert error_of(train_recipe, recipe, tmp_path / "run") == (
        f"{tmp_path / 'run'}: no model: the loss of every validation is not finite (training "
        "diverged); train with a lower lr, with another --out"
    )
    assert not (tmp_path / "run" / "model.json").exists()


def test_a_checkpoint_with_nan_is_not_loaded(trainer):
    training = trainer(steps=3, save_every=3, validate_every=3)
    assert training.run() == 0
    training.model.embed.weight.data[3, 1] = math.nan
    training.saved = -1
    training.save()
    assert error_of(newest_state, training.folder) == (
        "step-000003/model.safetensors: non-finite weights (embed.weight: 1); restore it from a "
        "backup, or resume from the previous checkpoint with --skip-damaged"
    )
