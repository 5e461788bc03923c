"""A digit translator, trained once for all command tests."""

import runpy
from pathlib import Path

import pytest

TOY = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    return TOY["make"](tmp_path_factory.mktemp("digits") / "model")


@pytest.fixture
def digit_pairs():
    return TOY["pairs"]
