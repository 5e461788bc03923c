"""Squared ReLU and its gradient equal torch operations."""

import pytest
import torch
import torch.nn.functional as F
from autograd_reference import DTYPES, LAYOUTS, assert_equals_autograd, random_tensor

from qkv.kernels.relu2 import relu2

pytestmark = pytest.mark.usefixtures("backend")


@DTYPES
@LAYOUTS
def test_relu2_equals_torch_operations(view, dtype, tolerance):
    assert_equals_autograd(
        lambda x: relu2(view(x)),
        lambda x: F.relu(view(x)).square(),
        random_tensor(2, 3, 5, 8),
        dtype=dtype,
        tolerance=tolerance,
    )


def test_the_gradient_of_relu2_agrees_with_finite_differences():
    assert torch.autograd.gradcheck(relu2, random_tensor(2, 3, 2, 6).requires_grad_())


def test_relu2_and_its_gradient_are_zero_at_zero_and_below():
    x = torch.tensor([-1.0, -0.0, 0.0, 3.0], requires_grad=True)
    out = relu2(x)
    out.sum().backward()
    assert out.tolist() == [0, 0, 0, 9] and x.grad.tolist() == [0, 0, 0, 6]


def test_relu2_has_no_second_derivative():
    x = random_tensor(3).requires_grad_()
    (grad,) = torch.autograd.grad(relu2(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
