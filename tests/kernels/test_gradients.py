"""The gradients that we wrote down are those that torch works out by itself."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qkv.kernels import native_ops
from qkv.kernels.gradients import RMSNorm, pays, relu_squared, turned_halves


@pytest.fixture(params=["torch", pytest.param("native", marks=pytest.mark.native)], autouse=True)
def made_by(request, monkeypatch):
    """The operations are torch's, or those of the native library, which must be here."""
    monkeypatch.setattr(native_ops, "NUMBERS", {torch.float64} if request.param == "native" else set())
    assert native_ops.is_native(torch.zeros(1, dtype=torch.float64)) == (request.param == "native")


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()


def plain_turn(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def same_with_gradients(one, other, *inputs):
    results = []
    for way in (one, other):
        ours = [one.detach().clone().requires_grad_() for one in inputs]
        out = way(*ours)
        (out * torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)).sum().backward()
        results.append([out, *(one.grad for one in ours)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(3, 5, 8), (7, 4), (130, 4), (2, 3, 5, 6)])
def test_rms_norm_equals_torch_s(shape):
    norm, theirs = RMSNorm(shape[-1], 1e-5).double(), nn.RMSNorm(shape[-1], 1e-5).double()
    gain = drawn(shape[-1])

    def through(module):
        return lambda x, gain: torch.func.functional_call(module, {"weight": gain}, (x,))
    x = drawn(*shape)
    assert pays(x)
    same_with_gradients(through(norm), through(theirs), x, gain)


def test_rms_norm_of_heads_that_are_a_view_equals_torch_s():
    norm, theirs = RMSNorm(4, 1e-6).double(), nn.RMSNorm(4, 1e-6).double()
    same_with_gradients(lambda x: norm(x.unflatten(-1, (3, 4)).transpose(1, 2)),
                        lambda x: theirs(x.unflatten(-1, (3, 4)).transpose(1, 2)), drawn(2, 5, 12))


@pytest.mark.native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 5, 8), (2, 3, 5, 8)])
def test_rms_norm_of_a_sum_whose_gradient_is_one_number_seen_everywhere_equals_torch_s(shape, dtype, monkeypatch):
    monkeypatch.setattr(native_ops, "NUMBERS", {torch.float32, torch.float64})  # torch's way is not at stake: its strides are its own
    assert native_ops.is_native(torch.zeros(1, dtype=dtype))
    x, gain, found = drawn(*shape).detach().to(dtype), drawn(8).detach().to(dtype), []
    for norm in (RMSNorm(8, 1e-5).to(dtype), nn.RMSNorm(8, 1e-5).to(dtype)):
        given = x.clone().requires_grad_()
        with torch.no_grad():
            norm.weight.copy_(gain)
        norm(given).sum().backward()
        found.append((given.grad, norm.weight.grad))
    torch.testing.assert_close(*found, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_rms_norm_of_a_transposed_batch_of_one_equals_torch_s():
    norm, theirs = RMSNorm(8, 1e-5).double(), nn.RMSNorm(8, 1e-5).double()
    same_with_gradients(lambda x: norm(x.transpose(1, 2)), lambda x: theirs(x.transpose(1, 2)), drawn(1, 8, 5))


@pytest.mark.parametrize("batches", [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("width", [4, 6, 10])
def test_a_turn_and_its_gradient_equal_the_formula(width, batches):
    cos, sin = (drawn(batch, 1, 5, 2).detach() for batch in batches)
    same_with_gradients(lambda x: turned_halves(x.transpose(1, 2), cos, sin),
                        lambda x: plain_turn(x.transpose(1, 2), cos, sin), drawn(2, 5, 3, width))


def test_relu_squared_equals_its_parts():
    same_with_gradients(relu_squared, lambda x: F.relu(x).square(), drawn(3, 4, 5))


@pytest.mark.parametrize("way", [
    RMSNorm(6, 1e-5).double(), relu_squared,
    lambda x: turned_halves(x, torch.ones(1, 1, 1, 2, dtype=torch.float64), torch.full((1, 1, 1, 2), 0.5, dtype=torch.float64)),
], ids=["rms", "relu2", "turn"])  # fmt: skip
def test_gradients_agree_with_finite_differences(way):
    assert torch.autograd.gradcheck(way, drawn(2, 3, 2, 6))


def test_where_nobody_learns_torch_s_own_operations_run():
    x = drawn(2, 3, 8)
    with torch.no_grad():
        assert not pays(x)
        torch.testing.assert_close(RMSNorm(8, 1e-5).double()(x), nn.RMSNorm(8, 1e-5).double()(x), rtol=0, atol=0)
    assert not pays(x.half())
