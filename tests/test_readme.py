"""Every command and Python block of the README runs and prints the output it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.data.builtin import DEMO_SENTENCES

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.serial  # trains for minutes on both cores


def blocks(kind: str, file: str = "README.md") -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Each command and the output printed under it."""
    found = []
    for block in blocks("console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + line + "\n")
    return found


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "QKV_LANG": "en"}
    environment.pop("OMP_NUM_THREADS", None)
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1_500
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    """A folder as a user has it after `make demo`."""
    demo = run(["make", "--no-print-directory", "demo"], ROOT)
    assert demo.returncode == 0, demo.stderr[-2_000:]
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "demo.out").write_text(demo.stdout, encoding="utf-8")
    (folder / "runs").mkdir()
    (folder / "runs" / "demo").symlink_to(ROOT / "runs" / "demo")
    (folder / ".venv").symlink_to(BIN.parent)
    return folder


def test_the_demo_translates_held_out_and_example_sentences(workspace):
    output = (workspace / "demo.out").read_text(encoding="utf-8")
    assert float(re.search(r"exact match ([\d.]+)%", output)[1]) >= 90
    assert float(re.search(r"BLEU\S* = ([\d.]+)", output)[1]) >= 95
    for pair in DEMO_SENTENCES:
        assert f"{pair.source} -> {pair.target}\n" in output
    for figure in ("attention.png", "curves.png"):
        assert (workspace / "runs" / "demo" / figure).stat().st_size > 10_000


def test_every_command_runs_and_prints_the_output_of_the_readme(workspace):
    for command, output in commands():
        if command != "make demo":
            done = run(["bash", "-c", command], workspace)
            assert done.returncode == 0, (command, done.stderr[-2_000:])
            assert output in done.stdout, (command, done.stdout)


def test_the_python_block_prints_the_output_in_its_comment(workspace):
    (python,) = blocks("python")
    done = run([sys.executable, "-c", python], workspace)
    assert done.returncode == 0, done.stderr[-2_000:]
    assert done.stdout.splitlines()[0] == re.search(r"# (.*)", python)[1]


def test_both_languages_have_the_same_code():
    for kind in ("console", "python"):
        assert blocks(kind) == blocks(kind, "README.zh-CN.md")
