"""The number of threads is measured once, recorded, restored, and changes nothing else."""

import pytest
import torch
import yaml
from run_traces import all_tensors, same

from qkv.cli.app import run as main
from qkv.train.thread_choice import fastest, measure_threads, record_threads, thread_counts


def test_thread_counts_halve():
    assert [thread_counts(limit) for limit in (1, 2, 6, 16)] == [
        [1],
        [2, 1],
        [6, 3, 1],
        [16, 8, 4, 2, 1],
    ]


@pytest.mark.parametrize(
    "seconds, expected",
    [
        ({2: 1.0, 1: 0.95}, 2),
        ({2: 1.0, 1: 0.7}, 1),
        ({8: 1.0, 4: 0.8, 2: 0.6, 1: 0.7}, 2),
        ({4: 1.0, 2: 1.3, 1: 2.0}, 4),
    ],
)
def test_fewer_threads_are_chosen_only_where_they_are_clearly_faster(seconds, expected):
    assert fastest(seconds) == expected


def test_each_pass_runs_with_the_number_it_is_measured_for():
    seen = []
    torch.set_num_threads(3)
    seconds = measure_threads(lambda: seen.append(torch.get_num_threads()), 3)
    assert seen[:3] == [3, 3, 1] and set(seconds) == {3, 1} and torch.get_num_threads() == 3


def test_measuring_threads_does_not_change_the_run(trainer):
    torch.set_num_threads(2)
    measured = trainer("run", steps=4)
    record_threads(measured)
    threads = measured.recipe.threads
    assert threads in (1, 2) and torch.get_num_threads() == threads
    assert all(weight.grad is None for weight in measured.model.parameters())
    measured.run()
    given = trainer("other", steps=4, threads=threads)
    record_threads(given)
    given.run()
    assert same(all_tensors(measured), all_tensors(given))


def test_a_given_number_is_not_measured(trainer, monkeypatch):
    training = trainer("run", threads=1)
    monkeypatch.setattr(training, "gradients", None)
    torch.set_num_threads(1)
    record_threads(training)
    assert (
        training.recipe.threads == 1 and yaml.safe_load(training.recipe.to_yaml())["threads"] == 1
    )


def test_a_run_records_its_threads_and_a_resumed_one_restores_them(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.threads._chosen", 2)
    run = ["train", "translate", "--out", str(tmp_path / "run")]
    settings = {
        "vocab_size": 400,
        "model.layers": 1,
        "model.d_model": 16,
        "model.n_heads": 2,
        "steps": 2,
        "valid_bleu": "false",
        "beam_size": 1,
    }
    files = ["--source", str(corpus / "a.zh"), "--target", str(corpus / "a.en")]
    assert main([*run, *files, *(f"--set={key}={value}" for key, value in settings.items())]) == 0
    assert yaml.safe_load((tmp_path / "run" / "train.yaml").read_text())["threads"] == 2
    monkeypatch.setattr("qkv.threads._chosen", None)
    torch.set_num_threads(1)
    assert main([*run, "--resume", "--accept-changes", "--set=steps=3"]) == 0
    assert (
        torch.get_num_threads() == 2
        and yaml.safe_load((tmp_path / "run" / "train.yaml").read_text())["threads"] == 2
    )
