"""When the native library and custom gradients are used, and tensor layouts."""

import re
from pathlib import Path

import pytest
import torch

import qkv.model
from qkv.kernels import build, calling


def test_the_model_package_has_no_custom_gradients_and_no_ctypes():
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for path in Path(qkv.model.__path__[0]).glob("*.py")
    }
    assert "attention.py" in sources
    forbidden = re.compile(r"autograd\.|import autograd|ctypes")
    assert not [name for name, text in sources.items() if forbidden.search(text)]


@pytest.mark.parametrize(
    "dtype, device",
    [(torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")],
    ids=str,
)
def test_the_native_library_is_used_only_in_float32_on_a_cpu(dtype, device):
    assert not build.can_be_native(torch.zeros(1, dtype=dtype, device=device))


def test_small_tensors_use_one_thread(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    assert calling.training_threads(torch.zeros(calling.MIN_ELEMENTS_FOR_THREADS - 1)) == 1
    assert calling.training_threads(torch.zeros(calling.MIN_ELEMENTS_FOR_THREADS)) == 7


@pytest.mark.parametrize("shape", [(8,), (130, 4), (7, 3, 5, 4, 6)], ids=str)
def test_rows_of_any_shape_are_grouped_into_batches_of_equal_length(shape):
    x = torch.arange(torch.Size(shape).numel()).view(shape)
    _, heads, length, width = calling.as_heads(x).shape
    assert heads == 1 and length <= calling.MAX_ROWS_PER_BATCH and width == shape[-1]
    assert torch.equal(calling.as_heads(x).flatten(), x.flatten())
