"""Fixtures: the import path of the helper modules, a fixed seed, and a small trained translator."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for imports of reference_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    toy = runpy.run_path(str(Path(__file__).resolve().parents[1] / "toy_translator.py"))
    return toy["make"](tmp_path_factory.mktemp("digits") / "model")
