"""Fixtures for all tests: real data beside the checkout when it is there, one torch thread per worker."""

import os
from pathlib import Path

import pytest

# Two workers on two cores: one thread each, or they disturb each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QKV_LANG", "en")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "120")
# The native library is made once for all tests, and not in the home of whoever runs them.
os.environ.setdefault("XDG_CACHE_HOME", str(Path(__file__).parents[1] / ".pytest_cache" / "home"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and weights; tests that need it are skipped where it is not."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no corpora in {folder}; they are not part of the product")
    return folder
