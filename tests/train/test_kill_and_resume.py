"""Training processes are killed and asked to stop at any moment; what they become is what an unbroken run becomes."""

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

from qkv.train.report import TIMES, read_metrics
from qkv.train.signals import STOPPED
from qkv.train.state import folder_of, load_state, saved_steps

STEPS, SAVE_EVERY = 240, 4
SETTINGS = {
    "vocab_size": 400,
    "model.layers": 1,
    "model.d_model": 16,
    "model.n_heads": 2,
    "model.d_ff": 32,
    "model.max_len": 64,
    "steps": STEPS,
    "save_every": SAVE_EVERY,
    "validate_every": 24,
    "batch_tokens": 300,
    "accumulate": 2,
    "warmup": 10,
    "optimizer": "muon",
    "ema": 0.9,
    "average": 3,
    "valid_bleu": "false",
    "beam_size": 1,
}


class Forge:
    """Starts trainings in folders below `root`, each a process of its own."""

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
        """Begin the run of this name, or resume it if it has a checkpoint."""
        out = self.root / name
        command = [*self.files, *(f"--set={key}={value}" for key, value in SETTINGS.items())]
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
    """One process; it has ended once `wait` has been called."""

    forge: Forge
    name: str
    pid: int

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it may just have ended by itself
            os.kill(self.pid, number)

    def wait(self) -> int:
        return self.forge.answer()


@pytest.fixture(scope="module")
def forge(tmp_path_factory, corpus):
    forge = Forge(tmp_path_factory.mktemp("runs"), corpus)
    yield forge
    forge.process.stdin.close()
    assert forge.process.wait(60) == 0
    forge.process.stdout.close()


@pytest.fixture(scope="module")
def unbroken(forge):
    """What an unbroken run leaves behind, and the seconds it took."""
    began = time.monotonic()
    assert forge.start("unbroken").wait() == 0, (forge.root / "unbroken.log").read_text()
    return traces(forge, "unbroken"), time.monotonic() - began


def traces(forge: Forge, name: str) -> dict[str, object]:
    """SHA-256 of every tensor of the last checkpoint and of the published model, metrics without times, sample ids."""
    out = forge.root / name
    groups = {
        **load_state(folder_of(out, STEPS)).tensors,
        "published": load_file(out / "model.safetensors"),
    }
    assert {"model", "optimizer-0", "optimizer-1", "ema", "published"} == set(groups)
    found = {
        f"{group}/{key}": hashlib.sha256(one.numpy().tobytes()).hexdigest()
        for group, tensors in groups.items()
        for key, one in tensors.items()
    }
    metrics = [
        {key: fact for key, fact in entry.items() if key not in TIMES}
        for entry in read_metrics(out / "metrics.jsonl")
    ]
    return {"tensors": found, "metrics": metrics, "sample ids": rows_of(forge, name)}


def rows_of(forge: Forge, name: str) -> dict[int, set[str]]:
    """For each micro-step the sentences it read; more than one entry if it was repeated with others."""
    read: dict[int, set[str]] = {}
    for line in (forge.root / f"{name}.rows").read_text().splitlines():
        micro_step, digest = line.split()
        read.setdefault(int(micro_step), set()).add(digest)
    return read


def being_written(forge: Forge, name: str) -> set[str]:
    """The temporary folders that are to become checkpoints; those that are deleted get such names too, but are old."""
    out = forge.root / name
    if not (out / "checkpoints").is_dir():
        return set()
    newest = max(saved_steps(out), default=0)
    names = [child.name for child in (out / "checkpoints").iterdir() if child.name.endswith(".tmp")]
    return {child for child in names if int(re.search(r"step-(\d+)", child)[1]) > newest}


def wait_for_save(forge: Forge, name: str, run: Run, nth: int) -> None:
    """Until the process is writing its n-th checkpoint, or has ended."""
    seen = old = being_written(forge, name)  # what an earlier death left behind
    while (
        len(seen - old) < nth
        and Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    ):
        seen = seen | being_written(forge, name)


def finish(forge: Forge, name: str, expected: dict[str, object]) -> None:
    """Let the run come to its end; it left what the unbroken one left."""
    assert forge.start(name).wait() == 0, (forge.root / f"{name}.log").read_text()
    compare(forge, name, expected)


def compare(forge: Forge, name: str, expected: dict[str, object]) -> None:
    found = traces(forge, name)
    for what, one in expected.items():
        assert found[what] == one, (name, what)
    assert len(found["sample ids"]) == 2 * STEPS
    shutil.rmtree(forge.root / name)
    (forge.root / f"{name}.rows").unlink()


def test_a_run_killed_30_times_equals_an_unbroken_one(forge, unbroken):
    expected, seconds = unbroken
    drawn, kills, inside, chain = random.Random(4), 0, 0, 0
    while kills < 30 or inside < 10:
        assert kills < 60, f"only {inside} of {kills} kills were inside a save"
        name = f"killed-{chain}"
        old, run = being_written(forge, name), forge.start(name)
        if drawn.random() < 0.5:
            wait_for_save(forge, name, run, drawn.randint(1, 3))
            time.sleep(drawn.uniform(0, 0.004))
        else:
            time.sleep(drawn.uniform(0, seconds / 5))
        run.signal(signal.SIGKILL)
        code = run.wait()
        assert code in (-signal.SIGKILL, 0), (code, (forge.root / f"{name}.log").read_text())
        if code == 0:
            compare(forge, name, expected)
            chain += 1
        else:
            kills, inside = kills + 1, inside + bool(being_written(forge, name) - old)
    if saved_steps(forge.root / f"killed-{chain}"):
        finish(forge, f"killed-{chain}", expected)
    print(f"{kills} kills, {inside} inside a save, {chain + 1} runs")


def test_20_of_20_stopped_runs_save_and_leave_with_75(forge, unbroken):
    expected, _ = unbroken
    drawn, stops, chain = random.Random(5), 0, 0
    while stops < 20:
        name = f"stopped-{chain}"
        rows, out = forge.root / f"{name}.rows", forge.root / name
        before, run = rows.stat().st_size if rows.exists() else 0, forge.start(name)
        while (
            not rows.exists() or rows.stat().st_size <= before
        ):  # until the first step of this process
            time.sleep(0.001)
        time.sleep(drawn.uniform(0, 0.2))
        run.signal(signal.SIGTERM)
        code, last_read = run.wait(), int(rows.read_text().splitlines()[-1].split()[0])
        if code == STOPPED:
            stops += 1
            assert saved_steps(out)[-1] == last_read // 2 + 1, (
                "the step that was under way is saved"
            )
        else:  # it came too late, when all steps were done and the card was being written
            assert saved_steps(out)[-1] == STEPS, (code, (forge.root / f"{name}.log").read_text())
        if saved_steps(out)[-1] == STEPS:
            finish(forge, name, expected)
            chain += 1
    if (forge.root / f"stopped-{chain}").exists():
        finish(forge, f"stopped-{chain}", expected)
    assert os.EX_TEMPFAIL == STOPPED == 75
