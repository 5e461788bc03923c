"""RMSNorm and its gradient equal torch's."""

import pytest
import torch
import torch.nn.functional as F
from autograd_reference import DTYPES, LAYOUTS, assert_equals_autograd, random_tensor
from torch import nn

from qkv.kernels.calling import MIN_ELEMENTS_FOR_THREADS, use_custom_gradient
from qkv.kernels.rms_norm import rms_norm
from qkv.model.norms import RMSNorm

pytestmark = pytest.mark.usefixtures("backend")


def ours(x, gain):
    return rms_norm(x, gain, 1e-5)


def theirs(x, gain):
    return F.rms_norm(x, gain.shape, gain, 1e-5)


@DTYPES
@pytest.mark.parametrize(
    "shape", [(8,), (3, 8), (7, 4), (130, 4), (3, 5, 8), (2, 3, 5, 6), (2, 2, 3, 5, 8)], ids=str
)
def test_rms_norm_equals_torch(shape, dtype, tolerance):
    assert_equals_autograd(
        ours,
        theirs,
        random_tensor(*shape),
        random_tensor(shape[-1]),
        dtype=dtype,
        tolerance=tolerance,
    )


@DTYPES
@LAYOUTS
def test_rms_norm_of_any_strides_equals_torch(view, dtype, tolerance):
    x = random_tensor(2, 3, 5, 8)
    x += x.sign()  # away from 0, where the gradient of equal elements cancels
    gain = random_tensor(view(x).shape[-1])
    assert_equals_autograd(
        lambda x, gain: ours(view(x), gain),
        lambda x, gain: theirs(view(x), gain),
        x,
        gain,
        dtype=dtype,
        tolerance=tolerance,
    )


@DTYPES
def test_rms_norm_of_a_transposed_batch_of_one_equals_torch(dtype, tolerance):
    assert_equals_autograd(
        lambda x, gain: ours(x.transpose(1, 2), gain),
        lambda x, gain: theirs(x.transpose(1, 2), gain),
        random_tensor(1, 8, 5),
        random_tensor(8),
        dtype=dtype,
        tolerance=tolerance,
    )


def test_the_gradient_of_rms_norm_agrees_with_finite_differences():
    assert torch.autograd.gradcheck(
        ours, (random_tensor(2, 3, 2, 6).requires_grad_(), random_tensor(6).requires_grad_())
    )


@pytest.mark.parametrize("shape", [(8, 2, 64, 64), (600, 64)], ids=str)
def test_rms_norm_does_not_depend_on_the_number_of_threads(shape):
    x, gain, found = (
        random_tensor(*shape).float().requires_grad_(),
        random_tensor(64).float().requires_grad_(),
        [],
    )
    assert x.numel() >= MIN_ELEMENTS_FOR_THREADS
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            out = ours(x, gain)
            found.append([out, *torch.autograd.grad(out.square().mean(dim=-1).sum(), (x, gain))])
        finally:
            torch.set_num_threads(before)
    assert all(torch.equal(first, second) for first, second in zip(*found, strict=True))


def test_without_gradients_torchs_rms_norm_is_used():
    x = random_tensor(2, 3, 8).requires_grad_()
    with torch.no_grad():
        assert not use_custom_gradient(x)
        torch.testing.assert_close(
            RMSNorm(8, 1e-5).double()(x), nn.RMSNorm(8, 1e-5).double()(x), rtol=0, atol=0
        )
    assert not use_custom_gradient(x.half())


def test_the_module_applies_its_gain_and_eps():
    module, x = RMSNorm(8, 1e-2).double(), random_tensor(2, 3, 8)
    with torch.no_grad():
        module.weight.copy_(random_tensor(8))
    torch.testing.assert_close(
        module(x), F.rms_norm(x, (8,), module.weight, 1e-2), rtol=1e-12, atol=1e-12
    )
