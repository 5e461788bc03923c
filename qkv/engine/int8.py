"""int8 quantization: a quarter of the bytes of float32 weights, two to four times as fast on a CPU.

Each output of a matrix has one scale. Products run in the native library, or in fbgemm without it.
See docs/explanation/performance.md.
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from qkv.engine.native_step import native_int8_product
from qkv.engine.packed_weights import MakeProduct, Map
from qkv.errors import QkvError
from qkv.kernels.build import can_be_native
from qkv.messages import _

ENGINE = "fbgemm"  # others require instructions that some CPUs report and do not have
# Without VNNI instructions fbgemm adds two products of an unsigned activation (0 to 255) and a
# weight in 16 bits, which saturate at 32,767: 2 * 255 * 63 = 32,130 fits, 2 * 255 * 127 does not.
# So fbgemm's weights have 7 bits on every CPU.
MAX_FBGEMM_WEIGHT = 63
CHECK_INPUTS = 64
MAX_CHECK_ERROR = 1e-5  # of the largest output; a saturated sum is wrong by a tenth and more


def can_be_int8(weight: Tensor) -> bool:
    """Whether this weight can be quantized here, by the native library or by fbgemm."""
    if can_be_native(weight):
        return True
    is_cpu_float32 = weight.device.type == "cpu" and weight.dtype == torch.float32
    return is_cpu_float32 and ENGINE in torch.backends.quantized.supported_engines


def int8_unsupported() -> QkvError:
    wrong = _("this model cannot be quantized on this machine")
    return QkvError("int8", wrong, _("leave it out"))


def int8_maker(native: bool) -> MakeProduct:
    """The function that quantizes a matrix, native or fbgemm; checked when first used."""
    make = native_int8_product if native else int8_product
    check_int8(make)
    return make


def int8_product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, inputs) by fbgemm.

    W has 7 bits, each row of x is quantized to -127 ... 127 with its own scale, sums have 32 bits.
    """
    scales = weight.abs().amax(dim=1).clamp_min(1e-12) / MAX_FBGEMM_WEIGHT
    zero_points = torch.zeros(len(weight), dtype=torch.long)
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates its quantization API
            quantized = torch.quantize_per_channel(
                weight, scales.double(), zero_points, 0, torch.qint8
            )
        packed = torch.ops.quantized.linear_prepack(quantized, None)
    finally:
        torch.backends.quantized.engine = before
    # torch uses one activation scale for all rows, from the minimum to the maximum. This extra row
    # sets it to 1/127, with the zero point 128.
    range_row = weight.new_zeros(1, weight.shape[1])
    range_row[0, 0], range_row[0, -1] = 1, -128 / 127

    def run(x: Tensor) -> Tensor:
        # One scale per row: batch-invariant.
        row_max = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        scaled = torch.cat([x / row_max, range_row])
        y = torch.ops.quantized.linear_dynamic.default(scaled, packed)[:-1] * row_max
        return y if bias is None else y + bias

    return run


# ── Self-check ───────────────────────────────────────────────────────────────────────────────────
@cache
def check_int8(make: MakeProduct) -> None:
    """Raise if products that overflow 16-bit sums differ from the exact integers."""
    weight, x = saturating_matrices(CHECK_INPUTS)
    exact = (x @ weight.t()).double()  # in int64: (rows, outputs)
    error = float((make(weight.float(), None)(x.float()) - exact).abs().max() / exact.abs().max())
    if not error <= MAX_CHECK_ERROR:  # also raises for NaN
        raise QkvError(
            "int8",
            _(
                "int8 matrix products are wrong on this CPU, by up to {error:.0%} of the largest"
                " output",
                error=error,
            ),
            _("leave it out"),
        )


def saturating_matrices(inputs: int) -> tuple[Tensor, Tensor]:
    """Weights (8, inputs) and activations (4, inputs) in int64, with all patterns of sign pairs.

    Every entry is 127 or -127: the largest values of int8, exactly represented.
    """
    index = torch.arange(inputs)
    signs = torch.stack(
        [
            torch.ones_like(index),
            1 - 2 * (index % 2),
            1 - 2 * (index // 2 % 2),
            1 - 2 * (index * index // 3 % 2),
        ]
    )
    return 127 * torch.cat([signs, -signs]), 127 * signs
