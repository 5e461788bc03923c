"""Signals that stop a training process, and the lock of a run folder, with real processes."""

import os
import platform
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from qkv.errors import QkvError
from qkv.train.lock import locked
from qkv.train.signals import STOPPED, Stopper

TRAINER = """
import sys, time
from pathlib import Path
from qkv.train.lock import locked
from qkv.train.signals import STOPPED, Stopper
out, pause = Path(sys.argv[1]), float(sys.argv[2])
with locked(out), Stopper() as stopper:
    for step in range(1_000):
        print(step, flush=True)
        time.sleep(pause)
        (out / "steps").write_text(str(step))
        if stopper.received:
            (out / "saved").write_text(str(step))
            sys.exit(STOPPED)
"""

WITHOUT_LOCKS = """
import os, sys
import torch  # before: torch for Linux needs them
sys.modules["fcntl"] = None
for name in ("fork", "register_at_fork"):
    delattr(os, name)
from qkv.cli import main
main()
"""


@contextmanager
def trainer(out, pause=0.05):
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, out, str(pause)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_the_step_saves_and_exits_with_75(tmp_path, number):
    with trainer(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(120) == STOPPED == os.EX_TEMPFAIL == 75
        assert (
            process.stderr.read() == "\nstopping after this step and saving a checkpoint; "
            "press again to exit at once\n"
        )
    assert (tmp_path / "saved").read_text() == (tmp_path / "steps").read_text()


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGTERM, signal.SIGTERM, 143),
        (signal.SIGTERM, signal.SIGINT, 130),
    ],
)
def test_the_second_signal_exits_at_once(tmp_path, first, second, code):
    with trainer(tmp_path, pause=600) as process:  # a step longer than the wait below
        process.send_signal(first)
        assert process.stderr.readline() + process.stderr.readline()
        process.send_signal(second)
        assert process.wait(120) == code
    assert not (tmp_path / "saved").exists()
    with locked(tmp_path):
        pass


def test_the_previous_handlers_are_restored():
    received = []
    interrupt = signal.getsignal(signal.SIGINT)  # shells ignore it for background processes
    old = signal.signal(signal.SIGTERM, lambda number, stack_frame: received.append(number))
    try:
        with Stopper() as stopper:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopper.received is signal.SIGTERM and received == []
        os.kill(os.getpid(), signal.SIGTERM)
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, old)


def test_two_training_processes_cannot_use_the_same_folder(tmp_path):
    with trainer(tmp_path) as process:
        with pytest.raises(QkvError) as error, locked(tmp_path):
            pass
        owner = f"pid {process.pid} on {socket.gethostname()}"
        assert str(error.value) == (
            f"{tmp_path}: another training process uses this folder ({owner}); "
            "wait for it, stop it, or choose another --out"
        )
        with locked(tmp_path / "another"):
            pass
        process.kill()
        process.wait()
        with locked(tmp_path):
            second = subprocess.run(
                [sys.executable, "-c", TRAINER, tmp_path, "0"], capture_output=True, text=True
            )
        assert re.search(rf"QkvError: .*\(pid {os.getpid()} on ", second.stderr)


def test_the_lock_is_released_after_the_block_and_after_an_error(tmp_path):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), locked(tmp_path / "runs" / "x"):
            1 / 0  # noqa: B018


def test_a_worker_that_outlives_its_parent_does_not_keep_the_lock(tmp_path):
    ready, working = os.pipe()
    with locked(tmp_path):
        worker = os.fork()
        if worker == 0:
            os.write(working, b".")
            time.sleep(30)
            os._exit(0)
        assert os.read(ready, 1) == b"."
        with pytest.raises(QkvError), locked(tmp_path):
            pass
    try:
        with locked(tmp_path):
            assert os.waitpid(worker, os.WNOHANG) == (0, 0)  # it is still running
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QkvError) as error, locked(tmp_path / "file" / "x"):
        pass
    assert (
        str(error.value)
        == f"{tmp_path}/file/x: cannot be used (Not a directory); choose another --out"
    )


def test_training_without_posix_locks_is_one_line_and_writes_nothing(tmp_path):
    (tmp_path / "text").write_text("a b c\n" * 100)
    command = ["train", "generate", "--text", "text", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, *command],
        cwd=tmp_path,
        env={**os.environ, "QKV_LANG": "en"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    right = "use Linux, on Windows with WSL"
    assert done.stderr == f"qkv: {platform.system()} has no POSIX file locks (fcntl); {right}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
