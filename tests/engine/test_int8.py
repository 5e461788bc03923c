"""int8 products are exact on every CPU, and quantized models stay close to the originals."""

import ctypes
import json
import math
import os
import platform
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from int8_errors import relative_error

from qkv.engine import int8
from qkv.engine import native_step as native
from qkv.engine.int8 import int8_product
from qkv.engine.stepper import PackedStepper
from qkv.errors import QkvError
from qkv.evaluate.int8_loss import int8_loss
from qkv.kernels import build
from qkv.model.presets import decoder_only
from qkv.model.spec import Attention, Gated
from qkv.model.transformer import Transformer

X86 = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86"
)
COMPILED = pytest.mark.native
SIZES = [(1, 256, 127), (5, 64, 63), (3, 4, 1)]  # repeats of the rows, inputs, maximum weight


def rounded(x: torch.Tensor, dim: int) -> torch.Tensor:
    """x rounded to 127 steps between -max and max."""
    step = x.abs().amax(dim=dim, keepdim=True) / 63
    return (x / step).round() * step


# ── Saturation ───────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("rows, inputs, max_weight", SIZES)
def test_fbgemm_products_that_would_saturate_are_exact(rows, inputs, max_weight):
    assert relative_error(int8_product, rows, inputs, max_weight) < 1e-6


@X86
@COMPILED
@pytest.mark.parametrize("rows, inputs, max_weight", SIZES)
@pytest.mark.parametrize("march", ["native", "x86-64-v3", "x86-64"])
def test_native_products_that_would_saturate_are_exact(march, rows, inputs, max_weight):
    assert relative_error(partial(native_for, march), rows, inputs, max_weight) == 0


def native_for(march: str, weight: torch.Tensor, bias: torch.Tensor | None) -> native.NativeProduct:
    """native_int8_product with a library compiled for another instruction set."""
    flags = (*build.FLAGS, f"-march={march}", *build.OPENMP_FLAGS)
    compiler = build.find_compiler()
    path = build.library_path(compiler, flags)
    assert build.is_built(compiler, flags, path)
    lib = build.load_library(path, ctypes.c_float)
    assert lib.qkv_width() == {"x86-64": 8, "x86-64-v3": 16}.get(march, lib.qkv_width())
    scales = weight.abs().amax(dim=1) / 127
    return native.NativeProduct(
        lib, (weight / scales[:, None]).round().to(torch.int8), bias, scales
    )


@X86
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512"])
def test_without_vnni_7_bits_are_exact_and_8_bits_fail_the_self_check(instructions):
    """fbgemm chooses its kernels at process start; the 8-bit weights show that they saturate."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("int8_errors.py"))],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"FBGEMM_ENABLE_INSTRUCTIONS": instructions},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["7 bits"][0] < 1e-6 and found["7 bits"][1] < 1e-6 and found["7 bits"][2]
    assert found["8 bits"][0] > 0.1 and not found["8 bits"][2]


def saturating(weight, bias):
    """x W^T with pairs of products in saturating 16 bits, as vpmaddubsw: x + 128 is unsigned."""

    def run(x):
        pairs = ((x + 128)[:, None] * weight).unflatten(2, (-1, 2)).sum(dim=3)
        pairs = pairs.clamp(-32_768, 32_767)
        return pairs.sum(dim=2) - 128 * weight.sum(dim=1)

    return run


@pytest.mark.parametrize(
    "make",
    [saturating, lambda weight, bias: lambda x: torch.full((len(x), len(weight)), torch.nan)],
)
def test_wrong_products_are_an_error_at_first_use(make, monkeypatch):
    monkeypatch.setattr(int8, "int8_product", make)
    model = Transformer(decoder_only(50, 32, 1, Attention(2, 2, 16), Gated(64))).eval()
    monkeypatch.setattr("qkv.engine.packed_model.can_be_native", lambda weight: False)
    with pytest.raises(QkvError) as error:
        PackedStepper(model, int8=True)
    assert str(error.value).startswith(
        "int8: int8 matrix products are wrong on this CPU, by up to "
    )
    assert str(error.value).endswith(" of the largest output; leave it out")


@pytest.mark.parametrize("is_native", [pytest.param(True, marks=COMPILED), False])
def test_right_products_are_checked_once_per_process(is_native, monkeypatch):
    int8.check_int8.cache_clear()
    makers = [int8.int8_maker(is_native) for _ in range(3)]
    assert len(set(makers)) == 1 and int8.check_int8.cache_info().misses == 1


def test_the_matrices_of_the_self_check_saturate_16_bits():
    weight, x = int8.saturating_matrices(64)
    exact = (x @ weight.t()).float()
    error = (saturating(weight.float(), None)(x.float()) - exact).abs().max()
    assert float(error) > 0.1 * float(exact.abs().max())
    assert set(weight.flatten().tolist()) == set(x.flatten().tolist()) == {127, -127}


# ── Rounding ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_that_of_the_rounded_matrix(bias):
    torch.manual_seed(0)
    weight, added = torch.randn(30, 64), torch.randn(30) if bias else None
    x = torch.randint(-127, 128, (5, 64)) / 64.0  # representable: only the matrix is rounded
    x[:, 0], x[:, 1] = 127 / 64, -127 / 64
    x *= torch.tensor([[1.0], [0.01], [3.0], [100.0], [0.0]])  # each row has its own scale
    expected = torch.nn.functional.linear(x, rounded(weight, 1), added)
    torch.testing.assert_close(int8_product(weight, added)(x), expected, rtol=1e-5, atol=1e-3)


def test_int8_products_are_batch_invariant():
    torch.manual_seed(0)
    run = int8_product(torch.randn(30, 64), torch.randn(30))
    x = torch.randn(20, 64) * torch.logspace(-3, 3, 20)[:, None]
    assert torch.equal(run(x), torch.cat([run(row[None]) for row in x]))


def test_the_quantized_engine_of_torch_is_restored():
    before = torch.backends.quantized.engine
    int8_product(torch.randn(4, 8), None)
    assert torch.backends.quantized.engine == before


def test_int8_steps_are_close_to_float_steps():
    torch.manual_seed(0)
    model = Transformer(decoder_only(200, 64, 2, Attention(4, 2, 16), Gated(128))).eval()
    exact, quantized = PackedStepper(model), PackedStepper(model, int8=True)
    with torch.inference_mode():
        a, b = exact.prefill([[3, 4, 5], [6]]), quantized.prefill([[3, 4, 5], [6]])
        for _ in range(20):
            assert 0 < float((a - b).norm() / a.norm()) < 0.05
            ids = a.argmax(dim=1)
            a, b = exact.step(ids), quantized.step(ids)


def test_int8_loss_gives_the_loss_of_both_weights():
    torch.manual_seed(0)
    model = Transformer(decoder_only(50, 32, 2, Attention(2, 2, 16), Gated(64))).eval()
    ids = torch.randint(50, (3, 20))
    with torch.no_grad():
        logits = model.logits(model.decode(ids[:, :-1]))
        expected = float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        )
    exact, quantized = int8_loss(model, ids)
    assert exact == pytest.approx(expected, abs=1e-5)
    assert quantized != exact and math.isclose(quantized, exact, abs_tol=0.05)
