"""The loop, in one process: what reaches the weights, what is kept, and that a resumed run equals an unbroken one."""

import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from run_traces import everything, published_steps, same, say_worth, sha256_of, told, watch_rows

from qkv.checkpoint.folder import load_model
from qkv.errors import QkvError
from qkv.train import loop
from qkv.train.loop import Trainer, state_to_resume
from qkv.train.luck import luck_at
from qkv.train.report import read_metrics
from qkv.train.state import folder_of, load_state, saved_steps

# ---- steps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "value", "changes"),
    [
        ("loss", math.nan, {"optimizer": "adamw"}),
        ("loss", math.inf, {"optimizer": "muon", "ema": 0.9, "accumulate": 2}),
        ("gradient", math.nan, {"optimizer": "muon", "ema": 0.9}),
        ("gradient", -math.inf, {"optimizer": "adam", "clip": 0.0}),
        (
            "forward",
            math.nan,
            {
                "model": {
                    "layers": 1,
                    "d_model": 16,
                    "n_heads": 2,
                    "d_ff": 32,
                    "max_len": 64,
                    "norm": "batch",
                }
            },
        ),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing(trainer, where, value, changes):
    one = trainer(steps=40, save_every=100, validate_every=100, **changes)
    struck = sorted(
        torch.randperm(40, generator=torch.Generator().manual_seed(5))[:20].add(1).tolist()
    )
    spoil(one, where, value, struck)
    kept = []
    with loop.Reporter(one.folder, 40) as one.reporter:
        for number in range(1, 41):
            before = everything(one)
            one.step()
            kept.append(number) if same(before, everything(one)) else None
    assert kept == struck and len(struck) == 20
    assert all(torch.isfinite(value).all() for part in everything(one) for value in part.values())
    assert [entry["skipped"] for entry in read_metrics(one.folder / "metrics.jsonl")] == [20]


def spoil(trainer, where, value, steps):
    """At these steps the loss, one number of a gradient, or one activation is `value`."""
    task, weight = trainer.task, trainer.model.decoder.layers[0].ffn.branch.up_proj.weight
    right, struck = task.loss, lambda: trainer.progress.step in steps
    if where == "loss":
        task.loss = lambda *given: right(*given) * (value if struck() else 1.0)
    elif where == "gradient":
        weight.register_hook(
            lambda grad: (
                grad.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(value))
                if struck()
                else grad
            )
        )
    else:
        branch = trainer.model.encoder.layers[0].attn.branch
        branch.register_forward_hook(lambda module, given, x: x * (value if struck() else 1.0))


def test_two_micro_batches_make_the_gradient_of_both_together(trainer):
    shape = {"layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 32, "max_len": 64, "dropout": 0.0}
    one = trainer(accumulate=2, model=shape)
    batches = [one.task.batch(0), one.task.batch(1)]
    counts = [one.task.sizes(batch)[0] for batch in batches]
    assert counts[0] != counts[1], "weighting shows only where the batches differ"
    loss = one.gradients(batches, sum(counts))
    found = {name: weight.grad.clone() for name, weight in one.model.named_parameters()}
    one.model.zero_grad()
    whole = sum(one.task.loss(one.model, batch) for batch in batches) / sum(counts)
    whole.backward()
    assert loss == pytest.approx(whole.item(), rel=1e-6)
    for name, weight in one.model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=0, atol=1e-6, msg=name)


def test_a_step_moves_by_the_clipped_gradient_at_the_scheduled_rate(trainer):
    one = trainer(optimizer="adam", clip=0.01, warmup=10, schedule="constant", lr=1.0, eps=1.0)
    weight = one.model.embed.weight
    before = weight.detach().clone()
    torch.manual_seed(luck_at(1, 1))
    one.gradients([one.task.batch(0)], one.task.sizes(one.task.batch(0))[0])
    norm = torch.stack([each.grad.norm() for each in one.model.parameters()]).norm()
    grad = weight.grad * (0.01 / norm)
    one.model.zero_grad()
    with loop.Reporter(one.folder, 12) as one.reporter:
        one.step()
    # The first step of Adam is lr g / (|g| + eps), and the first of ten steps of warm-up has a tenth of the rate.
    torch.testing.assert_close(
        weight.detach(), before - 0.1 * grad / (grad.abs() + 1.0), rtol=0, atol=1e-7
    )


def test_the_loss_falls(trainer):
    one = trainer(
        steps=100,
        save_every=100,
        validate_every=50,
        model={"layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 64, "max_len": 64},
    )
    assert one.run() == 0
    first, last = (
        entry["loss"]
        for entry in read_metrics(one.folder / "metrics.jsonl")
        if entry["kind"] == "valid"
    )
    assert last < first < math.log(400)


# ---- validation ----------------------------------------------------------------------------------------------------


def test_the_best_is_published_and_a_worse_one_later_does_not_replace_it(trainer):
    one = trainer(steps=12, validate_every=2, save_every=12)
    say_worth(one, [1.0, 5.0, 4.0, 5.0, 6.0, 2.0])
    steps = published_steps(one)
    assert one.run() == 0
    assert steps == [2, 4, 10]
    published = load_model(one.folder).model.state_dict()
    kept = load_state(folder_of(one.folder, 10)).tensors["model"]
    assert all(torch.equal(weight, kept[name]) for name, weight in published.items())
    assert not torch.equal(
        published["embed.weight"],
        load_state(folder_of(one.folder, 12)).tensors["model"]["embed.weight"],
    )


def test_training_stops_when_patience_is_at_an_end(trainer):
    one = trainer(steps=40, validate_every=2, patience=3)
    say_worth(one, [1.0, 5.0, 4.0, 5.0, 4.9, 9.9])
    assert one.run() == 0
    assert (one.progress.step, one.progress.best_step, one.progress.best) == (10, 4, 5.0)


def test_a_validation_that_is_no_number_never_counts_as_the_best(trainer):
    one = trainer(steps=6, validate_every=2)
    say_worth(one, [math.nan, 3.0, math.nan])
    assert one.run() == 0
    assert (one.progress.best, one.progress.best_step) == (3.0, 4)


def test_a_checkpoint_is_written_before_its_validation_begins(trainer):
    one = trainer(steps=9, save_every=4, validate_every=3)
    found, validate = [], one.task.validate
    one.task.validate = lambda *given: (
        found.append((one.progress.step, saved_steps(one.folder)[-1])),
        validate(*given),
    )[1]
    assert one.run() == 0
    assert found == [(3, 3), (6, 6), (9, 9)]


def test_the_last_checkpoints_the_best_one_and_those_to_average_stay(trainer):
    one = trainer(steps=20, save_every=2, validate_every=4)
    say_worth(one, [1.0, 9.0, 2.0, 3.0, 4.0])
    assert one.run() == 0
    assert saved_steps(one.folder) == [8, 16, 18, 20]
    other = trainer("other", steps=20, save_every=2, validate_every=20, average=5)
    assert other.run() == 0
    assert (
        saved_steps(other.folder)[-5:] == [12, 14, 16, 18, 20]
        and len(saved_steps(other.folder)) <= 7
    )


def test_the_mean_of_the_last_checkpoints_is_published_if_it_is_better(trainer):
    for name, worth, is_better in (("run", 5.0, True), ("other", 4.9, False)):
        one = trainer(name, steps=8, save_every=2, validate_every=8, average=3)
        say_worth(one, [5.0, worth])
        assert one.run() == 0
        kept = [load_state(folder_of(one.folder, step)).tensors["model"] for step in (4, 6, 8)]
        for key, weight in load_model(one.folder).model.state_dict().items():
            mean = sum(state[key].double() for state in kept).div(3).float()
            assert torch.equal(weight, mean if is_better else kept[-1][key]), key
        assert [entry["kind"] for entry in read_metrics(one.folder / "metrics.jsonl")] == [
            "train",
            "valid",
            "average",
        ]


def test_the_running_average_is_what_is_measured_and_published(trainer):
    one = trainer(steps=6, validate_every=6, ema=0.8)
    measured, validate = [], one.task.validate
    one.task.validate = lambda model: (
        measured.append(model.embed.weight.clone()),
        validate(model),
    )[1]
    expected, update = one.model.embed.weight.detach().double(), one.ema.update

    def follow(model):
        nonlocal expected
        update(model)
        expected = 0.8 * expected + 0.2 * model.embed.weight.detach().double()

    one.ema.update = follow
    assert one.run() == 0
    torch.testing.assert_close(measured[0].double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(load_model(one.folder).model.embed.weight, measured[0])
    assert not torch.equal(one.model.embed.weight, measured[0]), (
        "the model has its own weights again"
    )


# ---- resuming ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"accumulate": 3, "optimizer": "adam", "schedule": "paper", "lr": 1.0},
        {"optimizer": "muon", "ema": 0.9, "average": 3, "weight_decay": 0.1},
        {"bpe_dropout": 0.2, "bpe_variants": 2, "ema": 0.9, "steps": 24},
        {
            "shared_vocab": False,
            "tokenizer": "char",
            "valid_bleu": True,
            "r_drop": 1.0,
            "schedule": "cosine",
        },
        {
            "model": {
                "layers": 1,
                "d_model": 16,
                "n_heads": 2,
                "d_ff": 32,
                "max_len": 64,
                "norm": "batch",
                "tied": False,
            },
            "optimizer": "muon",
        },
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
def test_a_run_stopped_again_and_again_equals_an_unbroken_one(trainer, changes):
    whole, broken = trainer(**changes), trainer("other", **changes)
    order, steps = watch_rows(whole.task), whole.recipe.steps
    assert whole.run() == 0
    seen = []
    for stop_at in (
        2,
        6,
        7,
        11,
        steps,
    ):  # 6 has a validation, `steps` is the end: the last run only finishes
        watched = watch_rows(broken.task)
        stop_after(broken, stop_at)
        assert broken.run() == 75
        seen += watched
        broken = trainer("other", resume=True, **changes)
    assert broken.run() == 0
    assert seen == order and len(order) == steps * whole.recipe.accumulate
    assert sha256_of(broken.folder, steps) == sha256_of(whole.folder, steps)
    assert told(broken.folder) == told(whole.folder)


def stop_after(trainer, number):
    """Ask the process to stop, as the system would, in the middle of this step."""
    loss = trainer.task.loss

    def interrupted(model, *given, **named):
        if model.training and trainer.progress.step == number:
            trainer.task.loss = loss
            os.kill(os.getpid(), signal.SIGTERM)
        return loss(model, *given, **named)

    trainer.task.loss = interrupted


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(trainer):
    changes = {"average": 2, "ema": 0.9}
    assert trainer(**changes).run() == 0
    before = (
        sha256_of(trainer(resume=True, **changes).folder, 12),
        told(trainer(resume=True, **changes).folder),
    )
    again = trainer(resume=True, **changes)
    assert again.run() == 0
    assert (sha256_of(again.folder, 12), told(again.folder)) == before


def test_a_resumed_run_takes_its_rates_from_the_recipe(trainer):
    one = trainer(weight_decay=0.1, lr=0.005)
    stop_after(one, 3)
    assert one.run() == 75
    changed = trainer(resume=True, weight_decay=0.2, lr=0.5, schedule="constant")
    with loop.Reporter(changed.folder, 12, resumed=changed.reported) as changed.reporter:
        changed.step()
    assert [
        (group["lr"], group["weight_decay"]) for group in changed.optimizers[0].param_groups
    ] == [(0.5, 0.2), (0.5, 0.0)]


def test_a_damaged_checkpoint_that_was_passed_over_is_named_on_stderr(trainer, capsys):
    one = trainer()
    assert one.run() == 0
    (folder_of(one.folder, 12) / "model.safetensors").unlink()
    capsys.readouterr()
    again = Trainer(
        one.task,
        one.recipe,
        one.folder,
        state_to_resume(one.folder, resume=True, skip_damaged=True),
    )
    assert again.progress.step == 9 and again.run() == 0
    assert (
        "passed over, damaged: step-000012/model.safetensors: missing; put back a good copy\n"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"layers": 1, "d_model": 32, "n_heads": 2, "d_ff": 32}},
        {"optimizer": "muon"},
        {"ema": 0.9},
    ],
)
def test_a_run_is_not_resumed_with_another_model_optimiser_or_average(trainer, changes):
    one = trainer(steps=3)
    assert one.run() == 0
    with pytest.raises(QkvError) as error:
        trainer(resume=True, **changes)
    assert str(error.value) == (
        f"{one.folder}/checkpoints/step-000003: saved by a run with another model, optimizer or ema; "
        "go on with the run's own recipe, or choose another --out"
    )


def test_more_steps_can_be_added_to_a_finished_run(trainer):
    assert trainer(steps=6, schedule="constant").run() == 0
    assert trainer(resume=True, steps=9, schedule="constant").run() == 0
    whole = trainer("other", steps=9, schedule="constant")
    assert whole.run() == 0
    mine, other = (
        load_state(folder_of(whole.folder.parent / name, 9)).tensors for name in ("run", "other")
    )
    assert same(list(mine.values()), list(other.values()))


def test_two_runs_of_one_recipe_are_equal_and_another_seed_makes_another(trainer, tmp_path):
    (tmp_path / "third").mkdir()
    runs = [trainer(), trainer("other"), trainer("third", seed=2)]
    assert [one.run() for one in runs] == [0, 0, 0]
    first, second, third = (everything(one) for one in runs)
    assert same(first, second) and not same(first, third)
    assert replace(runs[0].recipe, seed=2) == runs[2].recipe
