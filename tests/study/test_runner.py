"""Runner of studies: one number of steps for all conditions, resuming, stopping, errors."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qkv.errors import QkvError
from qkv.study.config import StudyConfig
from qkv.study.question import Trial, load_question
from qkv.study.runner import fitting_steps, jobs_of, measure_study, with_steps
from qkv.study.scale import measure_model
from qkv.study.store import Store
from qkv.study.texts import write_data
from qkv.study.worker import StepTimer, TimingDone, finite
from qkv.study.workers import WorkerPool

QKV = [sys.executable, "-m", "qkv"]
SHORT = StudyConfig(seeds=1, steps=10, workers=1)
SCALE = load_question("scale")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(SCALE, StudyConfig(), folder)
    return folder


def training_trial(data: Path, seed: int, scaled: bool = True) -> Trial:
    return Trial({"scaled": scaled}, seed, 3, data, lambda step: None)


# ── Measurements ──────────────────────────────────────────────────────────────────────────────


def test_a_measurement_depends_on_the_seed_only(data):
    first, second = (measure_model(training_trial(data, seed=1)) for _ in range(2))
    other = measure_model(training_trial(data, seed=2))
    assert first["loss"] == second["loss"] and first["train_loss"] == second["train_loss"]
    assert other["loss"] != first["loss"]


def test_conditions_have_the_same_cost(data):
    scaled, unscaled = (measure_model(training_trial(data, 0, scaled)) for scaled in (True, False))
    for key in ("parameters", "tokens", "gflops", "steps"):
        assert scaled[key] == unscaled[key]
    assert scaled["loss"] != unscaled["loss"]


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────
def test_every_condition_trains_as_many_steps_within_the_time_limit(tmp_path):
    config = StudyConfig(seeds=3, minutes=10)
    jobs = list(jobs_of("scale", SCALE, config, Store(tmp_path)))
    training = [job for job in jobs if job["experiment"] == "language-model"]
    seconds = {"language-model-scaled": 0.1, "language-model-unscaled": 0.3}
    plan = {"settings": {"minutes": 10, "quick": False}, "seconds_per_step": seconds}
    steps = fitting_steps(SCALE, plan, training, n_cpus=2)
    assert 3 * 0.4 * steps == pytest.approx(0.8 * 2 * 600, rel=0.01)
    assert {job["steps"] for job in with_steps(SCALE, training, steps)} == {steps}
    others = [job for job in jobs if job["experiment"] == "scores"]
    assert {job["steps"] for job in with_steps(SCALE, others, steps)} == {0}
    assert len(training) == 6 and len(others) == 21


def test_a_step_timer_ends_after_a_few_steps():
    timer = StepTimer()
    with pytest.raises(TimingDone):
        for step in range(1, 100):
            timer(step)
    assert step <= 10 and timer.seconds_per_step >= 0


# ── Folder ────────────────────────────────────────────────────────────────────────────────────
def test_a_resumed_study_measures_only_what_is_missing(tmp_path):
    folder = tmp_path / "scale"
    results, steps = measure_study("scale", folder, SHORT)
    assert steps == 10
    files = sorted((folder / "results").iterdir())
    assert len(files) == 9
    lost, kept = (
        folder / "results/language-model-scaled-0.json",
        folder / "results/scores-d16-0.json",
    )
    before = lost.read_bytes()
    lost.unlink()
    changed = json.loads(kept.read_text())
    changed["measurement"]["variance"] = 12345.0
    kept.write_text(json.dumps(changed))
    again, _ = measure_study("scale", folder, SHORT)
    assert sorted((folder / "results").iterdir()) == files
    assert again.values("scores", "d16", "variance") == [12345.0]
    known, measured = (json.loads(text)["measurement"] for text in (before, lost.read_bytes()))
    assert known["loss"] == measured["loss"]
    assert again.values("language-model", "unscaled", "loss") == results.values(
        "language-model", "unscaled", "loss"
    )


def test_other_settings_need_another_folder(tmp_path):
    Store(tmp_path / "a").save_plan({"study": "scale", "settings": {"minutes": 10.0, "seeds": 3}})
    store = Store(tmp_path / "a")
    assert store.plan("scale", {"minutes": 10.0, "seeds": 5})["settings"]["seeds"] == 5
    with pytest.raises(QkvError) as error:
        store.plan("scale", {"minutes": 5.0, "seeds": 3})
    expected = "was made with minutes 10.0; repeat it, or choose another --out"
    assert str(error.value) == f"{tmp_path / 'a'}: {expected}"


def test_a_folder_with_other_files_is_not_used(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(QkvError, match=r"contains other files, such as notes\.txt"):
        measure_study("scale", tmp_path, SHORT)


def test_a_text_that_is_too_short_leaves_the_folder_usable(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("a few words")
    for _ in range(2):
        with pytest.raises(QkvError, match="11 characters are too few"):
            measure_study(
                "scale", tmp_path / "out", StudyConfig(seeds=1, steps=10, text=str(short))
            )


def test_numbers_that_json_lacks_become_null():
    assert finite({"a": [1.0, float("nan")], "b": float("inf")}) == {"a": [1.0, None], "b": None}


# ── Processes ─────────────────────────────────────────────────────────────────────────────────
def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_a_signal_stops_the_study_and_its_workers(tmp_path):
    folder = tmp_path / "scale"
    command = [*QKV, "study", "scale", "--steps", "1000000", "--seeds", "1", "--out", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for _ in range(1_200):  # until the measurements without training are done
        if len(list(folder.glob("results/scores-*.json"))) == 7 or process.poll() is not None:
            break
        time.sleep(0.1)
    workers = children(process.pid)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 75, errors
    last = errors.splitlines()[-1]
    assert last.startswith(f"stopped: 7 of 9 measurements are done ({folder}); continue with: qkv ")
    assert last.endswith(f"study scale --steps 1000000 --seeds 1 --out {folder}")
    assert workers and not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def test_a_worker_ends_when_its_parent_ends():
    command = [sys.executable, "-m", "qkv.study.worker"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_error_of_a_worker_is_one_line(tmp_path, data):
    job = {"study": "scale", "experiment": "language-model", "condition": "scaled", "seed": 0}
    with WorkerPool(1, tmp_path / "log.txt", lambda: False) as pool:
        with pytest.raises(RuntimeError, match="No such file"):
            list(pool.run([{**job, "steps": 3, "data": str(tmp_path)}], lambda: None))
        messages = pool.run([{**job, "steps": 10**6, "data": str(data)}], lambda: None)
        next(messages)
        os.kill(pool.workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(QkvError) as error:
            list(messages)
    wrong = "the worker process ended with code -9; see"
    assert str(error.value) == f"scale, scaled, seed 0: {wrong} {tmp_path / 'log.txt'}"
