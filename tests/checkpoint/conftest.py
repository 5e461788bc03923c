"""Fixtures for the tests of checkpoints: the helpers beside this file are found, every test starts from one seed."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import their_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)
