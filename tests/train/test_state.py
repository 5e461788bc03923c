"""Checkpoints are loaded bit by bit, and every kind of damage is detected."""

import os
import random
import shutil
import signal
import time

import pytest
import torch

from qkv.checkpoint import disk
from qkv.errors import QkvError
from qkv.train.state import checkpoint_folder, load_state, newest_state, save_state, saved_steps


def save_step(run, step, **options):
    """A checkpoint in which every number is the step."""
    model = {
        "embed.weight": torch.full((3, 4), float(step)),
        "norm.weight": torch.full((4,), float(step)),
    }
    optimizer = {"0.exp_avg": torch.full((3, 4), -float(step)), "0.step": torch.tensor(float(step))}
    return save_state(
        run, step, {"model": model, "optimizer": optimizer}, {"epoch": step // 10}, **options
    )


def has_its_step(state):
    groups = {"model": ["embed.weight", "norm.weight"], "optimizer": ["0.exp_avg", "0.step"]}
    assert {group: sorted(named) for group, named in state.tensors.items()} == groups
    tensors = [tensor for named in state.tensors.values() for tensor in named.values()]
    numbers = {abs(number) for tensor in tensors for number in tensor.flatten().tolist()}
    return numbers == {float(state.step)} and state.metadata == {
        "epoch": state.step // 10,
        "step": state.step,
    }


def names_in(folder):
    return sorted(child.name for child in folder.iterdir())


def test_a_checkpoint_is_a_folder_of_tensors_metadata_and_a_manifest(tmp_path):
    folder = save_step(tmp_path, 500)
    assert folder == tmp_path / "checkpoints" / "step-000500"
    assert names_in(folder) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert has_its_step(load_state(folder))
    assert list(load_state(folder, only=["model"]).tensors) == ["model"]


def test_a_run_without_checkpoints_has_no_newest_state(tmp_path):
    assert newest_state(tmp_path) is None and newest_state(tmp_path / "nowhere") is None


def test_metadata_is_read_back_exactly(tmp_path):
    metadata = {
        "best": 0.1 + 0.2,
        "none": None,
        "version": "2.13",
        "city": "北京",
        "lowest": float("-inf"),
        "n": 2**60,
    }
    save_state(tmp_path, 7, {"model": {}}, metadata)
    assert newest_state(tmp_path).metadata == {**metadata, "step": 7}


def test_the_last_and_the_listed_checkpoints_are_kept(tmp_path):
    for step in (5, 10, 15, 20, 1_000_000):
        save_step(tmp_path, step, keep=2, also=[10])
    assert saved_steps(tmp_path) == [10, 20, 1_000_000]
    assert newest_state(tmp_path).step == 1_000_000


def test_saving_never_deletes_the_saved_checkpoint_even_if_a_damaged_one_is_newer(tmp_path):
    for step in (5, 10, 15):
        save_step(tmp_path, step, keep=3)
    (checkpoint_folder(tmp_path, 15) / "model.safetensors").unlink()
    save_step(tmp_path, 12, keep=1)
    assert saved_steps(tmp_path) == [12, 15]
    assert newest_state(tmp_path, skip_damaged=True).step == 12
    save_step(tmp_path, 15, keep=1)  # the damaged checkpoint is replaced
    assert saved_steps(tmp_path) == [15] and has_its_step(newest_state(tmp_path))


def test_a_damaged_newest_checkpoint_is_an_error_and_skipped_only_on_request(tmp_path):
    save_step(tmp_path, 5)
    (save_step(tmp_path, 10) / "optimizer.safetensors").unlink()
    with pytest.raises(QkvError) as error:
        newest_state(tmp_path)
    assert str(error.value) == (
        "step-000010/optimizer.safetensors: missing; "
        "restore it from a backup, or resume from the previous checkpoint with --skip-damaged"
    )
    state = newest_state(tmp_path, skip_damaged=True)
    assert state.step == 5 and has_its_step(state)
    assert state.skipped == (
        "step-000010/optimizer.safetensors: missing; restore it from a backup",
    )


def test_when_all_are_damaged_all_are_named(tmp_path):
    for step in (5, 10):
        (save_step(tmp_path, step) / "state.json").write_bytes(b"")
    with pytest.raises(
        QkvError, match=r"all checkpoints are damaged \(step-000010/state.*step-000005/state"
    ):
        newest_state(tmp_path, skip_damaged=True)


def test_a_checkpoint_with_a_wrong_folder_name_is_an_error(tmp_path):
    save_step(tmp_path, 5).rename(checkpoint_folder(tmp_path, 6))
    with pytest.raises(QkvError) as error:
        load_state(checkpoint_folder(tmp_path, 6))
    assert (
        str(error.value)
        == "step-000006/state.json: belongs to step 5; rename the folder to step-000005"
    )


# ── crashes and damage ────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    pass


def crash_from(k, monkeypatch):
    """Every operation from the k-th on fails."""
    done = [0]

    def guarded(operation):
        def run(*arguments):
            done[0] += 1
            if k is not None and done[0] >= k:
                raise Crash
            operation(*arguments)

        return run

    for name in ("make_folder", "fill", "sync", "rename", "delete_file", "delete_folder"):
        monkeypatch.setattr(disk, name, guarded(getattr(disk, name)))
    return done


@pytest.mark.parametrize("step", [15, 10], ids=["a new step", "the same step again"])
def test_a_crash_at_any_operation_of_a_save_leaves_a_complete_checkpoint(
    tmp_path, monkeypatch, step
):
    def run_with_two(name):
        for earlier in (5, 10):
            save_step(tmp_path / name, earlier, keep=2)
        return tmp_path / name

    run = run_with_two("count")
    with monkeypatch.context() as patch:
        total = crash_from(None, patch)
        save_step(run, step, keep=2)
    assert total[0] >= 15
    for k in range(1, total[0] + 1):
        run = run_with_two(str(k))
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crash_from(k, patch)
            save_step(run, step, keep=2)
        found = newest_state(run)
        assert found.step in (10, step) and has_its_step(found)
        save_step(run, 20, keep=1)
        assert names_in(run / "checkpoints") == ["step-000020"]


def test_a_kill_during_a_save_leaves_a_complete_checkpoint(tmp_path):
    rng, inside = random.Random(1), 0
    save_step(tmp_path, 1)
    for _ in range(40):
        before = newest_state(tmp_path).step
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for step in range(before + 1, before + 100_000):
                    os.write(writing, b"(")
                    save_step(tmp_path, step, keep=2)
                    os.write(writing, b")")
            finally:
                os._exit(1)
        os.close(writing)
        time.sleep(rng.uniform(0.005, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        events = os.read(reading, 1_000_000)
        os.close(reading)
        state = newest_state(tmp_path)
        assert has_its_step(state) and state.step >= before + events.count(b")")
        inside += events.endswith(b"(")
        if inside == 10:
            break
    assert inside == 10
    save_step(tmp_path, 1_000_000, keep=1)
    assert names_in(tmp_path / "checkpoints") == ["step-1000000"]


def cut(rng, path):
    os.truncate(path, rng.randrange(path.stat().st_size))


def flip(rng, path):
    written = bytearray(path.read_bytes())
    written[rng.randrange(len(written))] ^= 1 << rng.randrange(8)
    path.write_bytes(written)


def zero(rng, path):
    path.write_bytes(bytes(path.stat().st_size))


def exchange(rng, path):
    other = rng.choice([file for file in path.parent.iterdir() if file != path])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs), other.write_bytes(mine)


def delete(rng, path):
    path.unlink()


def change_header_length(rng, path):
    """Change the header length in the first eight bytes of a safetensors file."""
    written = path.read_bytes()
    path.write_bytes(
        rng.choice([0, 1, len(written), 2**40, 2**63]).to_bytes(8, "little") + written[8:]
    )


def grow(rng, path):
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randrange(1, 50)))


def test_200_damaged_checkpoints_are_all_detected(tmp_path):
    rng = random.Random(2)
    save_step(tmp_path, 5)
    newest = save_step(tmp_path, 10)
    shutil.copytree(newest, tmp_path / "good")
    names = names_in(newest)
    for number in range(200):
        damage, name = (
            rng.choice([cut, flip, zero, exchange, delete, change_header_length, grow]),
            names[number % len(names)],
        )
        damage(rng, newest / name)
        with pytest.raises(QkvError) as error:
            newest_state(tmp_path)
        line = str(error.value)
        assert (
            line.startswith("step-000010/") and line.endswith("--skip-damaged") and "\n" not in line
        )
        # A damaged manifest may make another file look damaged.
        assert (
            f"step-000010/{name}" in line
            or name == "manifest.json"
            or "step-000010/manifest.json" in line
        )
        before = newest_state(tmp_path, skip_damaged=True)
        assert before.step == 5 and has_its_step(before)
        shutil.rmtree(newest)
        shutil.copytree(tmp_path / "good", newest)
    assert newest_state(tmp_path).step == 10


def test_no_pickle_is_written(tmp_path):
    folder = save_step(tmp_path, 1)
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}
