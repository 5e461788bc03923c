"""Fixtures for the tests of the kernels: the small models are found, and every test starts from the same seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))  # so that tests import small_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)
