"""The demos, three minutes each, on all cores, on one core and beside a busy process.

They need an idle machine.
"""

import os
import re
import subprocess
import sys
import time

import pytest
import yaml

from qkv.train.metrics import read_metrics

pytestmark = pytest.mark.slow
MAX_SECONDS = 3.5 * 60  # of training, validation included


def demo(out, *arguments, one_core=False) -> str:
    """The output of a demo; checks its time limit and the recorded number of steps."""
    environment = {**os.environ, "QKV_LANG": "en"}
    environment.pop("OMP_NUM_THREADS", None)
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if one_core else []
    command = [*pinned, sys.executable, "-m", "qkv", "demo", *arguments, "--out", str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1_200)
    assert done.returncode == 0, done.stderr[-2_000:]
    last = read_metrics(out / "metrics.jsonl")[-1]
    assert last["seconds"] <= MAX_SECONDS
    assert last["step"] == yaml.safe_load((out / "train.yaml").read_text())["steps"]
    return done.stdout


def exact_match(output: str) -> float:
    return float(re.search(r"exact match ([\d.]+)%", output)[1])


@pytest.fixture
def busy_loop():
    """A process that uses one core."""
    loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    time.sleep(0.5)
    yield
    loop.kill()
    loop.wait()


def test_exact_match_of_the_translator_on_all_cores(tmp_path):
    assert exact_match(demo(tmp_path / "run")) >= 97


def test_exact_match_of_the_translator_on_one_core(tmp_path):
    assert exact_match(demo(tmp_path / "run", one_core=True)) >= 90


def test_exact_match_of_the_translator_beside_a_busy_process(tmp_path, busy_loop):
    assert exact_match(demo(tmp_path / "run")) >= 90


@pytest.mark.parametrize("one_core", [False, True], ids=["all cores", "one core"])
def test_the_language_model_generates_sentences_of_the_grammar(tmp_path, one_core):
    output = demo(tmp_path / "run", "generate", one_core=one_core)
    assert int(re.search(r"(\d+) of 100 sampled", output)[1]) >= 90


@pytest.mark.parametrize("one_core", [False, True], ids=["all cores", "one core"])
def test_the_embedder_retrieves_translations(tmp_path, one_core):
    output = demo(tmp_path / "run", "embed", one_core=one_core)
    assert float(re.search(r"recall@1 zh->en ([\d.]+)%", output)[1]) >= 95
