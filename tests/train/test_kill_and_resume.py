"""Training processes killed or stopped at any moment and resumed equal an uninterrupted run."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file

from qkv.train.metrics import TIMING_FIELDS, read_metrics
from qkv.train.signals import STOPPED
from qkv.train.state import checkpoint_folder, load_state, saved_steps

STEPS, SAVE_EVERY = 240, 4
SETTINGS = f"""
    vocab_size=400 model.layers=1 model.d_model=16 model.n_heads=2 model.d_ff=32 model.max_len=64
    steps={STEPS} save_every={SAVE_EVERY} validate_every=24 batch_tokens=300 warmup_steps=10
    gradient_accumulation_steps=2 optimizer=muon ema_decay=0.9 average_checkpoints=3
    valid_bleu=false beam_size=1
""".split()


class Launcher:
    """Starts training processes in folders below `root`."""

    def __init__(self, root: Path, corpus: Path):
        files = {
            f"--{side}": corpus / name
            for side, name in (
                ("source", "a.zh"),
                ("target", "a.en"),
                ("valid-source", "v.zh"),
                ("valid-target", "v.en"),
            )
        }
        self.root, self.files = root, [str(part) for pair in files.items() for part in pair]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "QKV_LANG": "en"}
        script = Path(__file__).with_name("training_processes.py")
        self.process = subprocess.Popen(
            [sys.executable, script],
            text=True,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.answer() == "ready"

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def start(self, name: str) -> "Run":
        """Start the run of this name, or resume it if it has a checkpoint."""
        out = self.root / name
        command = [*self.files, *(f"--set={setting}" for setting in SETTINGS)]
        resumed = saved_steps(out) != []
        arguments = [
            "train",
            "translate",
            "--out",
            str(out),
            *(["--resume"] if resumed else command),
        ]
        order = {
            "arguments": arguments,
            "output": str(self.root / f"{name}.log"),
            "rows": str(self.root / f"{name}.rows"),
        }
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return Run(self, name, self.answer())


@dataclass
class Run:
    """A process; it has ended once `wait` returns."""

    launcher: Launcher
    name: str
    pid: int

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may have ended already
            os.kill(self.pid, number)

    def wait(self) -> int:
        return self.launcher.answer()


@pytest.fixture(scope="module")
def launcher(tmp_path_factory, corpus):
    launcher = Launcher(tmp_path_factory.mktemp("runs"), corpus)
    yield launcher
    launcher.process.stdin.close()
    assert launcher.process.wait(60) == 0
    launcher.process.stdout.close()


@pytest.fixture(scope="module")
def uninterrupted(launcher):
    """The results of an uninterrupted run, and its seconds."""
    start = time.monotonic()
    assert launcher.start("uninterrupted").wait() == 0, (
        launcher.root / "uninterrupted.log"
    ).read_text()
    return traces(launcher, "uninterrupted"), time.monotonic() - start


def traces(launcher: Launcher, name: str) -> dict[str, object]:
    """SHA-256 of all tensors of the last checkpoint and the published model, metrics, rows."""
    out = launcher.root / name
    groups = {
        **load_state(checkpoint_folder(out, STEPS)).tensors,
        "published": load_file(out / "model.safetensors"),
    }
    assert {"model", "optimizer-0", "optimizer-1", "ema", "published"} == set(groups)
    found = {
        f"{group}/{key}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
        for group, tensors in groups.items()
        for key, tensor in tensors.items()
    }
    metrics = [
        {key: value for key, value in entry.items() if key not in TIMING_FIELDS}
        for entry in read_metrics(out / "metrics.jsonl")
    ]
    return {"tensors": found, "metrics": metrics, "sample ids": rows_of(launcher, name)}


def rows_of(launcher: Launcher, name: str) -> dict[int, set[str]]:
    """Digests of the rows of each micro-step; several if a repetition used other rows."""
    read: dict[int, set[str]] = {}
    for line in (launcher.root / f"{name}.rows").read_text().splitlines():
        micro_step, digest = line.split()
        read.setdefault(int(micro_step), set()).add(digest)
    return read


def being_written(launcher: Launcher, name: str) -> set[str]:
    """The temporary folders of unfinished checkpoints, without those of older, deleted ones."""
    out = launcher.root / name
    if not (out / "checkpoints").is_dir():
        return set()
    newest = max(saved_steps(out), default=0)
    names = [child.name for child in (out / "checkpoints").iterdir() if child.name.endswith(".tmp")]
    return {child for child in names if int(re.search(r"step-(\d+)", child)[1]) > newest}


def wait_for_save(launcher: Launcher, name: str, run: Run, nth: int) -> None:
    """Wait until the process writes its n-th checkpoint, or has ended."""
    seen = old = being_written(launcher, name)  # left by an earlier kill
    while (
        len(seen - old) < nth
        and Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    ):
        seen = seen | being_written(launcher, name)


def finish(launcher: Launcher, name: str, expected: dict[str, object]) -> None:
    """Run to the end and compare with the uninterrupted run."""
    assert launcher.start(name).wait() == 0, (launcher.root / f"{name}.log").read_text()
    compare(launcher, name, expected)


def compare(launcher: Launcher, name: str, expected: dict[str, object]) -> None:
    found = traces(launcher, name)
    for key, value in expected.items():
        assert found[key] == value, (name, key)
    assert len(found["sample ids"]) == 2 * STEPS
    shutil.rmtree(launcher.root / name)
    (launcher.root / f"{name}.rows").unlink()


def test_a_run_killed_30_times_equals_an_uninterrupted_one(launcher, uninterrupted):
    expected, seconds = uninterrupted
    rng, kills, inside, chain = random.Random(4), 0, 0, 0
    while kills < 30 or inside < 10:
        assert kills < 60, f"only {inside} of {kills} kills were inside a save"
        name = f"killed-{chain}"
        old, run = being_written(launcher, name), launcher.start(name)
        if rng.random() < 0.5:
            wait_for_save(launcher, name, run, rng.randint(1, 3))
            time.sleep(rng.uniform(0, 0.004))
        else:
            time.sleep(rng.uniform(0, seconds / 5))
        run.signal(signal.SIGKILL)
        code = run.wait()
        assert code in (-signal.SIGKILL, 0), (code, (launcher.root / f"{name}.log").read_text())
        if code == 0:
            compare(launcher, name, expected)
            chain += 1
        else:
            kills, inside = kills + 1, inside + bool(being_written(launcher, name) - old)
    if saved_steps(launcher.root / f"killed-{chain}"):
        finish(launcher, f"killed-{chain}", expected)
    print(f"{kills} kills, {inside} inside a save, {chain + 1} runs")


def test_20_of_20_stopped_runs_save_and_exit_with_75(launcher, uninterrupted):
    expected, _ = uninterrupted
    rng, stops, chain = random.Random(5), 0, 0
    while stops < 20:
        name = f"stopped-{chain}"
        rows, out = launcher.root / f"{name}.rows", launcher.root / name
        before, run = rows.stat().st_size if rows.exists() else 0, launcher.start(name)
        while (
            not rows.exists() or rows.stat().st_size <= before
        ):  # wait for the first step of this process
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.2))
        run.signal(signal.SIGTERM)
        code, last_read = run.wait(), int(rows.read_text().splitlines()[-1].split()[0])
        if code == STOPPED:
            stops += 1
            assert saved_steps(out)[-1] == last_read // 2 + 1, "the current step is saved"
        else:  # too late: all steps were done
            assert saved_steps(out)[-1] == STEPS, (
                code,
                (launcher.root / f"{name}.log").read_text(),
            )
        if saved_steps(out)[-1] == STEPS:
            finish(launcher, name, expected)
            chain += 1
    if (launcher.root / f"stopped-{chain}").exists():
        finish(launcher, f"stopped-{chain}", expected)
    assert os.EX_TEMPFAIL == STOPPED == 75
