"""Fixtures for kernel tests: a fixed seed, and torch and native implementations."""

import sys
from pathlib import Path

import pytest
import torch

from qkv.kernels import build

sys.path[:0] = [
    str(Path(__file__).parent),
    str(Path(__file__).parents[1] / "model"),
]  # for autograd_reference and small_models


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.fixture(params=["torch", pytest.param("native", marks=pytest.mark.native)])
def backend(request, monkeypatch):
    """Kernels use torch operations, or the native library in float32 and float64."""
    dtypes = {torch.float32, torch.float64}
    monkeypatch.setattr(build, "NATIVE_DTYPES", dtypes if request.param == "native" else set())
    for dtype in dtypes:
        assert build.can_be_native(torch.zeros(1, dtype=dtype)) == (request.param == "native")
    return request.param
