"""A digit translator, trained once for all command tests, and sessions at a terminal."""

import os
import pty
import runpy
import subprocess
from pathlib import Path

import pytest

TOY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    return TOY["make"](tmp_path_factory.mktemp("digits") / "model")


@pytest.fixture(scope="session")
def digit_pairs():
    return TOY["pairs"]


@pytest.fixture
def type_at_terminal():
    """type_at_terminal(command, line): the answer to a typed line, and stderr after Ctrl-D."""

    def session(command: list[str], line: str) -> tuple[str, str]:
        leader, follower = pty.openpty()
        pipes = {"stdin": follower, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        environment = os.environ | {"PYTHONUTF8": "1"}
        with subprocess.Popen(command, **pipes, encoding="utf-8", env=environment) as process:
            os.write(leader, f"{line}\n".encode())
            answer = process.stdout.readline()
            os.write(leader, b"\x04")
            assert process.wait(timeout=60) == 0
            errors = process.stderr.read()
        os.close(leader)
        os.close(follower)
        return answer, errors

    return session
