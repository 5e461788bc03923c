"""Fixtures for all tests: real data beside the checkout when it is there, one torch thread per worker, operation counts."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Two workers on two cores: one thread each, or they disturb each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QKV_LANG", "en")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")
# The native library is made once for all tests, and not in the home of whoever runs them.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).parents[1] / ".pytest_cache" / "home"))

# No test depends on the clock: a busy machine is slow, not wrong. Speed is measured by benchmarks/.
settings.register_profile("qkv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("qkv")
PRODUCT = str(Path(__file__).parents[1] / "qkv") + os.sep


@pytest.fixture(scope="session")
def lines_executed() -> Callable[[Callable[[], Any]], int]:
    """A function that counts the lines of Python in qkv that a call executes: its work, the same on every machine."""

    def count(function: Callable[[], Any]) -> int:
        lines, before = 0, sys.gettrace()

        def in_product(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal lines
            lines += event == "line"
            return in_product

        sys.settrace(
            lambda frame, event, arg: (
                in_product if frame.f_code.co_filename.startswith(PRODUCT) else None
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
    """The folder of real corpora and weights; tests that need it are skipped where it is not."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no corpora in {folder}; they are not part of the product")
    return folder
