"""The training loop in training process: steps, checkpoints, validation, and exact resume."""

import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from run_traces import (
    all_tensors,
    fake_bleu,
    metrics_without_times,
    published_steps,
    record_rows,
    same,
    sha256_of,
)

from qkv.checkpoint.folder import load_model
from qkv.errors import QkvError
from qkv.train import loop
from qkv.train.loop import Trainer
from qkv.train.metrics import read_metrics
from qkv.train.resume import state_to_resume
from qkv.train.seeds import derive_seed
from qkv.train.state import checkpoint_folder, load_state, saved_steps

BATCH_NORM = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64, "norm": "batch"}

# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("where", "value", "changes"),
    [
        ("loss", math.nan, {"optimizer": "adamw"}),
        (
            "loss",
            math.inf,
            {"optimizer": "muon", "ema_decay": 0.9, "gradient_accumulation_steps": 2},
        ),
        ("gradient", math.nan, {"optimizer": "muon", "ema_decay": 0.9}),
        ("gradient", -math.inf, {"optimizer": "adam", "max_grad_norm": 0.0}),
        ("forward", math.nan, {"model": BATCH_NORM}),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing(trainer, where, value, changes):
    training = trainer(steps=40, save_every=100, validate_every=100, **changes)
    skipped = sorted(
        torch.randperm(40, generator=torch.Generator().manual_seed(5))[:20].add(1).tolist()
    )
    inject(training, where, value, skipped)
    kept = []
    with loop.Reporter(training.folder, 40) as training.reporter:
        for number in range(1, 41):
            before = all_tensors(training)
            training.step()
            kept.append(number) if same(before, all_tensors(training)) else None
    assert kept == skipped and len(skipped) == 20
    assert all(
        torch.isfinite(value).all() for part in all_tensors(training) for value in part.values()
    )
    assert [entry["skipped"] for entry in read_metrics(training.folder / "metrics.jsonl")] == [20]


def inject(trainer, where, value, steps):
    """Set the loss, a number of a gradient, or an activation to `value` at these steps."""
    task, weight = trainer.task, trainer.model.decoder.layers[0].ffn.branch.up_proj.weight
    right, skipped = task.loss, lambda: trainer.progress.step in steps
    if where == "loss":
        task.loss = lambda *given: right(*given) * (value if skipped() else 1.0)
    elif where == "gradient":
        weight.register_hook(
            lambda grad: (
                grad.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(value))
                if skipped()
                else grad
            )
        )
    else:
        branch = trainer.model.encoder.layers[0].attn.branch
        branch.register_forward_hook(lambda module, given, x: x * (value if skipped() else 1.0))


def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch(trainer):
    shape = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.0}
    training = trainer(gradient_accumulation_steps=2, model=shape)
    batches = [training.task.batch(0), training.task.batch(1)]
    counts = [training.task.sizes(batch)[0] for batch in batches]
    assert counts[0] != counts[1], "the weighting matters only where the sizes differ"
    loss = training.gradients(batches, sum(counts))
    found = {name: weight.grad.clone() for name, weight in training.model.named_parameters()}
    training.model.zero_grad()
    whole = sum(training.task.loss(training.model, batch) for batch in batches) / sum(counts)
    whole.backward()
    assert loss == pytest.approx(whole.item(), rel=1e-6)
    for name, weight in training.model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=0, atol=1e-6, msg=name)


def test_a_step_uses_the_clipped_gradient_and_the_scheduled_learning_rate(trainer):
    training = trainer(
        optimizer="adam", max_grad_norm=0.01, warmup_steps=10, schedule="constant", lr=1.0, eps=1.0
    )
    weight = training.model.embed.weight
    before = weight.detach().clone()
    torch.manual_seed(derive_seed(1, 1))
    training.gradients([training.task.batch(0)], training.task.sizes(training.task.batch(0))[0])
    norm = torch.stack([parameter.grad.norm() for parameter in training.model.parameters()]).norm()
    grad = weight.grad * (0.01 / norm)
    training.model.zero_grad()
    with loop.Reporter(training.folder, 12) as training.reporter:
        training.step()
    # The first Adam step is lr g / (|g| + eps); the first of ten warmup steps has lr / 10.
    torch.testing.assert_close(
        weight.detach(), before - 0.1 * grad / (grad.abs() + 1.0), rtol=0, atol=1e-7
    )


def test_the_loss_falls(trainer):
    training = trainer(
        steps=100,
        save_every=100,
        validate_every=50,
        model={"layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 64, "max_len": 64},
    )
    assert training.run() == 0
    first, last = (
        entry["loss"]
        for entry in read_metrics(training.folder / "metrics.jsonl")
        if entry["kind"] == "valid"
    )
    assert last < first < math.log(400)


# ── validation ────────────────────────────────────────────────────────────────────────────────────


def test_the_best_model_is_published_and_a_worse_one_does_not_replace_it(trainer):
    training = trainer(steps=12, validate_every=2, save_every=12)
    fake_bleu(training, [1.0, 5.0, 4.0, 5.0, 6.0, 2.0])
    steps = published_steps(training)
    assert training.run() == 0
    assert steps == [2, 4, 10]
    published = load_model(training.folder).model.state_dict()
    kept = load_state(checkpoint_folder(training.folder, 10)).tensors["model"]
    assert all(torch.equal(weight, kept[name]) for name, weight in published.items())
    assert not torch.equal(
        published["embed.weight"],
        load_state(checkpoint_folder(training.folder, 12)).tensors["model"]["embed.weight"],
    )


def test_early_stopping_after_patience_validations(trainer):
    training = trainer(steps=40, validate_every=2, patience=3)
    fake_bleu(training, [1.0, 5.0, 4.0, 5.0, 4.9, 9.9])
    assert training.run() == 0
    assert (training.progress.step, training.progress.best_step, training.progress.best) == (
        10,
        4,
        5.0,
    )


def test_a_nan_validation_is_never_the_best(trainer):
    training = trainer(steps=6, validate_every=2)
    fake_bleu(training, [math.nan, 3.0, math.nan])
    assert training.run() == 0
    assert (training.progress.best, training.progress.best_step) == (3.0, 4)


def test_a_checkpoint_is_written_before_its_validation(trainer):
    training = trainer(steps=9, save_every=4, validate_every=3)
    found, validate = [], training.task.validate
    training.task.validate = lambda *given: (
        found.append((training.progress.step, saved_steps(training.folder)[-1])),
        validate(*given),
    )[1]
    assert training.run() == 0
    assert found == [(3, 3), (6, 6), (9, 9)]


def test_the_last_the_best_and_the_averaged_checkpoints_are_kept(trainer):
    training = trainer(steps=20, save_every=2, validate_every=4)
    fake_bleu(training, [1.0, 9.0, 2.0, 3.0, 4.0])
    assert training.run() == 0
    assert saved_steps(training.folder) == [8, 16, 18, 20]
    other = trainer("other", steps=20, save_every=2, validate_every=20, average_checkpoints=5)
    assert other.run() == 0
    assert (
        saved_steps(other.folder)[-5:] == [12, 14, 16, 18, 20]
        and len(saved_steps(other.folder)) <= 7
    )


def test_the_average_of_the_last_checkpoints_is_published_if_it_is_better(trainer):
    for name, score, is_better in (("run", 5.0, True), ("other", 4.9, False)):
        training = trainer(name, steps=8, save_every=2, validate_every=8, average_checkpoints=3)
        fake_bleu(training, [5.0, score])
        assert training.run() == 0
        kept = [
            load_state(checkpoint_folder(training.folder, step)).tensors["model"]
            for step in (4, 6, 8)
        ]
        for key, weight in load_model(training.folder).model.state_dict().items():
            mean = sum(state[key].double() for state in kept).div(3).float()
            assert torch.equal(weight, mean if is_better else kept[-1][key]), key
        assert [entry["kind"] for entry in read_metrics(training.folder / "metrics.jsonl")] == [
            "train",
            "valid",
            "average",
        ]


def test_the_ema_is_validated_and_published(trainer):
    training = trainer(steps=6, validate_every=6, ema_decay=0.8)
    measured, validate = [], training.task.validate
    training.task.validate = lambda model: (
        measured.append(model.embed.weight.clone()),
        validate(model),
    )[1]
    expected, update = training.model.embed.weight.detach().double(), training.ema.update

    def follow(model):
        nonlocal expected
        update(model)
        expected = 0.8 * expected + 0.2 * model.embed.weight.detach().double()

    training.ema.update = follow
    assert training.run() == 0
    torch.testing.assert_close(measured[0].double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(load_model(training.folder).model.embed.weight, measured[0])
    assert not torch.equal(training.model.embed.weight, measured[0]), (
        "the model has its own weights after the validation"
    )


# ── resuming ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 3, "optimizer": "adam", "schedule": "paper", "lr": 1.0},
        {"optimizer": "muon", "ema_decay": 0.9, "average_checkpoints": 3, "weight_decay": 0.1},
        {"bpe_dropout": 0.2, "bpe_variants": 2, "ema_decay": 0.9, "steps": 24},
        {
            "shared_vocab": False,
            "tokenizer": "char",
            "valid_bleu": True,
            "r_drop": 1.0,
            "schedule": "cosine",
        },
        {"model": BATCH_NORM | {"tied": False}, "optimizer": "muon"},
    ],
    ids=[
        "adamw",
        "accumulated",
        "muon+ema+average",
        "bpe-dropout",
        "two vocabularies",
        "batch norm",
    ],
)
def test_a_run_stopped_several_times_equals_an_uninterrupted_one(trainer, changes):
    whole, broken = trainer(**changes), trainer("other", **changes)
    order, steps = record_rows(whole.task), whole.recipe.steps
    assert whole.run() == 0
    seen = []
    for stop_at in (
        2,
        6,
        7,
        11,
        steps,
    ):  # step 6 has a validation; at `steps` the last run only finishes
        recorded = record_rows(broken.task)
        stop_after(broken, stop_at)
        assert broken.run() == 75
        seen += recorded
        broken = trainer("other", resume=True, **changes)
    assert broken.run() == 0
    assert seen == order and len(order) == steps * whole.recipe.gradient_accumulation_steps
    assert sha256_of(broken.folder, steps) == sha256_of(whole.folder, steps)
    assert metrics_without_times(broken.folder) == metrics_without_times(whole.folder)


def stop_after(trainer, number):
    """Send SIGTERM to this process in the middle of this step."""
    loss = trainer.task.loss

    def interrupted(model, *given, **named):
        if model.training and trainer.progress.step == number:
            trainer.task.loss = loss
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(model, *given, **named)

    trainer.task.loss = interrupted


def test_resuming_a_finished_run_changes_nothing(trainer):
    changes = {"average_checkpoints": 2, "ema_decay": 0.9}
    assert trainer(**changes).run() == 0
    before = (
        sha256_of(trainer(resume=True, **changes).folder, 12),
        metrics_without_times(trainer(resume=True, **changes).folder),
    )
    again = trainer(resume=True, **changes)
    assert again.run() == 0
    assert (sha256_of(again.folder, 12), metrics_without_times(again.folder)) == before


def test_a_resumed_run_uses_the_learning_rates_of_the_recipe(trainer):
    training = trainer(weight_decay=0.1, lr=0.005)
    stop_after(training, 3)
    assert training.run() == 75
    changed = trainer(resume=True, weight_decay=0.2, lr=0.5, schedule="constant")
    with loop.Reporter(changed.folder, 12, resumed=changed.reporter_state) as changed.reporter:
        changed.step()
    assert [
        (group["lr"], group["weight_decay"]) for group in changed.optimizers[0].param_groups
    ] == [(0.5, 0.2), (0.5, 0.0)]


def test_a_skipped_damaged_checkpoint_is_named_on_stderr(trainer, capsys):
    training = trainer()
    assert training.run() == 0
    (checkpoint_folder(training.folder, 12) / "model.safetensors").unlink()
    capsys.readouterr()
    again = Trainer(
        training.task,
        training.recipe,
        training.folder,
        state_to_resume(training.folder, resume=True, skip_damaged=True),
    )
    assert again.progress.step == 9 and again.run() == 0
    assert (
        "skipped a damaged checkpoint: "
        "step-000012/model.safetensors: missing; restore it from a backup\n"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 32}},
        {"optimizer": "muon"},
        {"ema_decay": 0.9},
    ],
)
def test_resuming_with_another_model_optimizer_or_ema_is_an_error(trainer, changes):
    training = trainer(steps=3)
    assert training.run() == 0
    with pytest.raises(QkvError) as error:
        trainer(resume=True, **changes)
    assert str(error.value) == (
        f"{training.folder}/checkpoints/step-000003: "
        "saved by a run with another model, optimizer or ema_decay; "
        "resume with the recipe of the run, or choose another --out"
    )


def test_more_steps_can_be_added_to_a_finished_run(trainer):
    assert trainer(steps=6, schedule="constant").run() == 0
    assert trainer(resume=True, steps=9, schedule="constant").run() == 0
    whole = trainer("other", steps=9, schedule="constant")
    assert whole.run() == 0
    mine, other = (
        load_state(checkpoint_folder(whole.folder.parent / name, 9)).tensors
        for name in ("run", "other")
    )
    assert same(list(mine.values()), list(other.values()))


def test_two_runs_of_one_recipe_are_equal_and_another_seed_differs(trainer, tmp_path):
    (tmp_path / "third").mkdir()
    runs = [trainer(), trainer("other"), trainer("third", seed=2)]
    assert [run.run() for run in runs] == [0, 0, 0]
    first, second, third = (all_tensors(run) for run in runs)
    assert same(first, second) and not same(first, third)
    assert replace(runs[0].recipe, seed=2) == runs[2].recipe
