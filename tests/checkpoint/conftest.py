"""Fixtures for the tests of checkpoints: the helpers beside this file are found, every test starts from one seed,
and one translator of digits is trained for all."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import their_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    toy = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))
    return toy["make"](tmp_path_factory.mktemp("digits") / "model")
