"""The state of a run: what is saved comes back bit by bit, and no accident to the disk goes unseen."""

import os
import random
import shutil
import signal
import time

import pytest
import torch

from qkv.checkpoint import disk
from qkv.errors import QkvError
from qkv.train.state import folder_of, load_state, newest_state, save_state, saved_steps


def save_step(run, step, **options):
    """A checkpoint in which every number tells the step."""
    model = {
        "embed.weight": torch.full((3, 4), float(step)),
        "norm.weight": torch.full((4,), float(step)),
    }
    optimizer = {"0.exp_avg": torch.full((3, 4), -float(step)), "0.step": torch.tensor(float(step))}
    return save_state(
        run, step, {"model": model, "optimizer": optimizer}, {"epoch": step // 10}, **options
    )


def tells_its_step(state):
    groups = {"model": ["embed.weight", "norm.weight"], "optimizer": ["0.exp_avg", "0.step"]}
    assert {group: sorted(named) for group, named in state.tensors.items()} == groups
    tensors = [tensor for named in state.tensors.values() for tensor in named.values()]
    numbers = {abs(number) for tensor in tensors for number in tensor.flatten().tolist()}
    return numbers == {float(state.step)} and state.facts == {
        "epoch": state.step // 10,
        "step": state.step,
    }


def names_in(folder):
    return sorted(child.name for child in folder.iterdir())


def test_a_checkpoint_is_a_folder_of_tensors_facts_and_a_manifest(tmp_path):
    folder = save_step(tmp_path, 500)
    assert folder == tmp_path / "checkpoints" / "step-000500"
    assert names_in(folder) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert tells_its_step(load_state(folder))
    assert list(load_state(folder, only=["model"]).tensors) == ["model"]


def test_a_run_without_checkpoints_has_no_newest(tmp_path):
    assert newest_state(tmp_path) is None and newest_state(tmp_path / "nowhere") is None


def test_facts_come_back_exactly(tmp_path):
    facts = {
        "best": 0.1 + 0.2,
        "none": None,
        "version": "2.13",
        "city": "北京",
        "lowest": float("-inf"),
        "n": 2**60,
    }
    save_state(tmp_path, 7, {"model": {}}, facts)
    assert newest_state(tmp_path).facts == {**facts, "step": 7}


def test_the_last_ones_and_the_listed_ones_are_kept(tmp_path):
    for step in (5, 10, 15, 20, 1_000_000):
        save_step(tmp_path, step, keep=2, also=[10])
    assert saved_steps(tmp_path) == [10, 20, 1_000_000]
    assert newest_state(tmp_path).step == 1_000_000


def test_saving_never_deletes_what_was_just_saved_though_a_damaged_one_is_newer(tmp_path):
    for step in (5, 10, 15):
        save_step(tmp_path, step, keep=3)
    (folder_of(tmp_path, 15) / "model.safetensors").unlink()
    save_step(tmp_path, 12, keep=1)
    assert saved_steps(tmp_path) == [12, 15]
    assert newest_state(tmp_path, skip_damaged=True).step == 12
    save_step(tmp_path, 15, keep=1)  # the damaged one is replaced when training comes there again
    assert saved_steps(tmp_path) == [15] and tells_its_step(newest_state(tmp_path))


def test_a_damaged_newest_checkpoint_is_named_and_passed_over_only_on_request(tmp_path):
    save_step(tmp_path, 5)
    (save_step(tmp_path, 10) / "optimizer.safetensors").unlink()
    with pytest.raises(QkvError) as refused:
        newest_state(tmp_path)
    assert str(refused.value) == (
        "step-000010/optimizer.safetensors: missing; "
        "put back a good copy, or go on from the one before with --skip-damaged"
    )
    state = newest_state(tmp_path, skip_damaged=True)
    assert state.step == 5 and tells_its_step(state)
    assert state.passed_over == (
        "step-000010/optimizer.safetensors: missing; put back a good copy",
    )


def test_when_all_are_damaged_all_are_named(tmp_path):
    for step in (5, 10):
        (save_step(tmp_path, step) / "state.json").write_bytes(b"")
    with pytest.raises(
        QkvError, match=r"all checkpoints are damaged \(step-000010/state.*step-000005/state"
    ):
        newest_state(tmp_path, skip_damaged=True)


def test_a_checkpoint_under_a_wrong_name_is_refused(tmp_path):
    save_step(tmp_path, 5).rename(folder_of(tmp_path, 6))
    with pytest.raises(QkvError) as refused:
        load_state(folder_of(tmp_path, 6))
    assert str(refused.value) == "step-000006/state.json: is of step 5; call the folder step-000005"


# ---- accidents -----------------------------------------------------------------------------------------------------


class Crash(BaseException):
    pass


def crash_from(k, monkeypatch):
    """From the k-th operation on, the process is dead."""
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
def test_a_crash_at_any_operation_of_a_save_leaves_the_newest_whole_checkpoint(
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
        assert found.step in (10, step) and tells_its_step(found)
        save_step(run, 20, keep=1)
        assert names_in(run / "checkpoints") == ["step-000020"]


def test_a_kill_inside_a_save_always_leaves_a_whole_checkpoint(tmp_path):
    dice, inside = random.Random(1), 0
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
        time.sleep(dice.uniform(0.005, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        marks = os.read(reading, 1_000_000)
        os.close(reading)
        state = newest_state(tmp_path)
        assert tells_its_step(state) and state.step >= before + marks.count(b")")
        inside += marks.endswith(b"(")
        if inside == 10:
            break
    assert inside == 10
    save_step(tmp_path, 1_000_000, keep=1)
    assert names_in(tmp_path / "checkpoints") == ["step-1000000"]


def cut(dice, path):
    os.truncate(path, dice.randrange(path.stat().st_size))


def flip(dice, path):
    written = bytearray(path.read_bytes())
    written[dice.randrange(len(written))] ^= 1 << dice.randrange(8)
    path.write_bytes(written)


def zero(dice, path):
    path.write_bytes(bytes(path.stat().st_size))


def swap(dice, path):
    other = dice.choice([file for file in path.parent.iterdir() if file != path])
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs), other.write_bytes(mine)


def delete(dice, path):
    path.unlink()


def lie(dice, path):
    """The first eight bytes of a safetensors file say how long its header is."""
    written = path.read_bytes()
    path.write_bytes(
        dice.choice([0, 1, len(written), 2**40, 2**63]).to_bytes(8, "little") + written[8:]
    )


def grow(dice, path):
    path.write_bytes(path.read_bytes() + dice.randbytes(dice.randrange(1, 50)))


def test_200_damaged_checkpoints_are_refused_by_name_and_none_is_half_loaded(tmp_path):
    dice = random.Random(2)
    save_step(tmp_path, 5)
    newest = save_step(tmp_path, 10)
    shutil.copytree(newest, tmp_path / "good")
    names = names_in(newest)
    for number in range(200):
        damage, name = (
            dice.choice([cut, flip, zero, swap, delete, lie, grow]),
            names[number % len(names)],
        )
        damage(dice, newest / name)
        with pytest.raises(QkvError) as refused:
            newest_state(tmp_path)
        line = str(refused.value)
        assert (
            line.startswith("step-000010/") and line.endswith("--skip-damaged") and "\n" not in line
        )
        # A changed manifest may accuse the file it speaks of, or be accused itself when it changed places with one.
        assert (
            f"step-000010/{name}" in line
            or name == "manifest.json"
            or "step-000010/manifest.json" in line
        )
        before = newest_state(tmp_path, skip_damaged=True)
        assert before.step == 5 and tells_its_step(before)
        shutil.rmtree(newest)
        shutil.copytree(tmp_path / "good", newest)
    assert newest_state(tmp_path).step == 10


def test_no_pickle_is_written(tmp_path):
    folder = save_step(tmp_path, 1)
    assert {file.suffix for file in folder.iterdir()} == {".json", ".safetensors"}
