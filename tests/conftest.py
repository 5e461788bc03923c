"""Fixtures for all tests: the shared data folder, one torch thread per worker, operation counts."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Two workers on two cores: one thread each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QKV_LANG", "en")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")
# The native library is built once for all tests, not in the user's cache folder.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).parents[1] / ".pytest_cache" / "home"))

# No test has a time limit; benchmarks/ measures speed.
settings.register_profile("qkv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qkv")
# Files of a minute or more: first, so that no worker waits for the other at the end.
LONG_FILES = (
    "test_package.py",
    "test_kill_and_resume.py",
    "test_build.py",
    "test_demos_short.py",
    "test_embedder.py",
)
PACKAGE = str(Path(__file__).parents[1] / "qkv") + os.sep


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.fixture(scope="session")
def lines_executed() -> Callable[[Callable[[], Any]], int]:
    """Count the lines of Python in qkv that a call executes: a machine-independent cost."""

    def count(function: Callable[[], Any]) -> int:
        lines, before = 0, sys.gettrace()

        def in_package(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return in_package

        sys.settrace(
            lambda frame, event, arg: (
                in_package if frame.f_code.co_filename.startswith(PACKAGE) else None
            )
        )
        try:
            function()
        finally:
            sys.settrace(before)
        return lines

    return count


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of corpora and weights; tests that need it are skipped if it is missing."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no corpora in {folder}; they are not part of the package")
    return folder
