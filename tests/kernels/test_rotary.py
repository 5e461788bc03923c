"""Rotary embedding and its gradient equal the formula; it preserves norms and is invertible."""

import pytest
import torch
from autograd_reference import DTYPES, LAYOUTS, assert_equals_autograd, random_tensor

from qkv.kernels.rotary import rotate_halves

pytestmark = pytest.mark.usefixtures("backend")


def formula(x, cos, sin):
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def assert_rotates(view, x, cos, sin, **options):
    """The angles have the dtype of x, as those of make_rotation."""
    assert_equals_autograd(
        lambda x: rotate_halves(view(x), cos.to(x.dtype), sin.to(x.dtype)),
        lambda x: formula(
            view(x), *(angles.to(options["dtype"]).double() for angles in (cos, sin))
        ),
        x,
        **options,
    )


@DTYPES
@pytest.mark.parametrize("batches", [(1, 1), (2, 2), (1, 2)])
@pytest.mark.parametrize("width", [4, 6, 10])
def test_rotation_and_gradient_equal_the_formula(width, batches, dtype, tolerance):
    cos, sin = (random_tensor(batch, 1, 5, 2) for batch in batches)
    assert_rotates(
        lambda x: x.transpose(1, 2),
        random_tensor(2, 5, 3, width),
        cos,
        sin,
        dtype=dtype,
        tolerance=tolerance,
    )


@DTYPES
@LAYOUTS
@pytest.mark.parametrize("length", ["per position", "one for all"])
def test_rotation_of_any_strides_equals_the_formula(view, length, dtype, tolerance):
    x = random_tensor(2, 3, 5, 8)
    positions = view(x).shape[2] if length == "per position" else 1
    cos, sin = (
        random_tensor(2, 1, positions, 2),
        random_tensor(2, 1, positions, 4)[..., ::2],
    )  # sin is strided
    assert_rotates(view, x, cos, sin, dtype=dtype, tolerance=tolerance)


@pytest.mark.parametrize("length", [1, 2])
def test_the_gradient_of_the_rotation_agrees_with_finite_differences(length):
    angles = random_tensor(1, 1, length, 2)
    assert torch.autograd.gradcheck(
        lambda x: rotate_halves(x, angles.cos(), angles.sin()),
        random_tensor(2, 3, 2, 6).requires_grad_(),
    )


def test_a_rotation_preserves_norms_and_the_negative_angle_inverts_it():
    x, angles = random_tensor(2, 3, 5, 8).requires_grad_(), random_tensor(1, 1, 5, 4)
    rotated = rotate_halves(x, angles.cos(), angles.sin())
    torch.testing.assert_close(rotated.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        rotate_halves(rotated, angles.cos(), -angles.sin()), x, rtol=1e-12, atol=1e-12
    )


def test_without_gradients_the_rotation_is_the_formula():
    x, cos, sin = random_tensor(2, 3, 5, 8), random_tensor(1, 1, 5, 4), random_tensor(1, 1, 5, 4)
    with torch.no_grad():
        assert torch.equal(rotate_halves(x, cos, sin), formula(x, cos, sin))
