"""Matrices in 8 bits stay near their originals, and the loss says how near."""

import math

import pytest
import torch

from qkv.generate.fast_prompt import FastPromptStepper, int8_loss
from qkv.generate.int8 import int8_product
from qkv.model.presets import writer
from qkv.model.spec import Gated, Heads
from qkv.model.transformer import Transformer


def rounded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The nearest of 255 steps between -max and max."""
    step = x.abs().amax(dim=dim, keepdim=True) / 127
    return (x / step).round() * step


@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_rounded_matrix(bias):
    torch.manual_seed(0)
    weight, added = torch.randn(30, 64), torch.randn(30) if bias else None
    x = torch.randint(-127, 128, (5, 64)) / 64.0  # on the grid of 8 bits: only the matrix is rounded
    x[:, 0], x[:, 1] = 127 / 64, -128 / 64
    expected = torch.nn.functional.linear(x, rounded(weight, 1), added)
    torch.testing.assert_close(int8_product(weight, added)(x), expected, rtol=0, atol=1e-4)


def test_the_chosen_engine_of_torch_is_left_as_it_was():
    before = torch.backends.quantized.engine
    int8_product(torch.randn(4, 8), None)
    assert torch.backends.quantized.engine == before


def test_steps_in_8_bits_are_near_the_exact_ones():
    torch.manual_seed(0)
    model = Transformer(writer(200, 64, 2, Heads(4, 2, 16), Gated(128))).eval()
    exact, small = FastPromptStepper(model), FastPromptStepper(model, int8=True)
    with torch.inference_mode():
        a, b = exact.read([[3, 4, 5], [6]]), small.read([[3, 4, 5], [6]])
        for _ in range(20):
            assert 0 < float((a - b).norm() / a.norm()) < 0.05
            ids = a.argmax(dim=1)
            a, b = exact.step(ids), small.step(ids)


def test_the_loss_is_told_with_and_without():
    torch.manual_seed(0)
    model = Transformer(writer(50, 32, 2, Heads(2, 2, 16), Gated(64))).eval()
    ids = torch.randint(50, (3, 20))
    with torch.no_grad():
        logits = model.logits(model.decode(ids[:, :-1]))
        expected = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))
    exact, small = int8_loss(model, ids)
    assert exact == pytest.approx(expected, abs=1e-5)
    assert small != exact and math.isclose(small, exact, abs_tol=0.05)
