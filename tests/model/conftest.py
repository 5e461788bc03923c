"""Fixtures for the tests of qkv.model: the path of small_models, and one seed for every test."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that tests import small_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)
