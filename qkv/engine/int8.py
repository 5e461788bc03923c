"""int8 quantization: matrices in 8 bits, a quarter of the bytes to read, and on a CPU two to four times as fast.

In: a matrix in float32. Out: a function of many rows that multiplies by its nearest matrix of whole numbers, one scale
for each output. Explained in docs/performance.md, "int8 on every CPU".
"""

import warnings
from functools import cache

import torch
from torch import Tensor

from qkv.engine.native_step import native_int8_product
from qkv.engine.packed_weights import Make, Map
from qkv.errors import QkvError
from qkv.kernels.calling import can_be_native
from qkv.messages import _

ENGINE = "fbgemm"  # the others look for instructions that some machines announce and do not have
# Without VNNI instructions fbgemm adds two products of an unsigned activation (0 to 255) and a weight in 16 bits, which
# saturate at 32,767: 2 * 255 * 63 = 32,130 fits, 2 * 255 * 127 does not. So fbgemm's weights have 7 bits on every CPU.
LARGEST_WEIGHT = 63
CHECK_INPUTS, CHECK_ROUNDING = (
    64,
    1e-5,
)  # of the largest output; a saturated sum is wrong by a tenth and more


def can_be_int8(weight: Tensor) -> bool:
    """Whether this processor and these numbers are for it, by the native library or by fbgemm."""
    if can_be_native(weight):
        return True
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and ENGINE in torch.backends.quantized.supported_engines
    )


def no_int8() -> QkvError:
    return QkvError("int8", _("this model has no such step here"), _("leave it out"))


def int8_maker(native: bool) -> Make:
    """How a matrix becomes an int8 product, by the native library or by fbgemm; its results are checked at first use."""
    make = native_int8_product if native else int8_product
    check_int8(make)
    return make


def int8_product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, width) by fbgemm: W in 7 bits, each row of x rounded to -127 ... 127 of its own scale, sums in 32."""
    scales = weight.abs().amax(dim=1).clamp_min(1e-12) / LARGEST_WEIGHT
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch wants another library for quantizing, but its product is this one
            whole = torch.quantize_per_channel(
                weight, scales.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8
            )
        laid_out = torch.ops.quantized.linear_prepack(whole, None)
    finally:
        torch.backends.quantized.engine = before
    # torch has one activation scale for all rows, from the smallest number to the largest. This row makes it 1/127, zero at 128.
    ends = weight.new_zeros(1, weight.shape[1])
    ends[0, 0], ends[0, -1] = 1, -128 / 127

    def run(x: Tensor) -> Tensor:
        largest = (
            x.abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        )  # a scale for each row: batch-invariant
        y = (
            torch.ops.quantized.linear_dynamic.default(torch.cat([x / largest, ends]), laid_out)[
                :-1
            ]
            * largest
        )
        return y if bias is None else y + bias

    return run


# ── Self-check ───────────────────────────────────────────────────────────────────────────────────────────────────
@cache
def check_int8(make: Make) -> None:
    """Compare one product whose 16-bit sums would saturate with the exact integers; wrong results are an error, not an output."""
    weight, x = saturating_matrices(CHECK_INPUTS)
    exact = (x @ weight.t()).double()  # in int64: (rows, outputs)
    wrong = float((make(weight.float(), None)(x.float()) - exact).abs().max() / exact.abs().max())
    if not wrong <= CHECK_ROUNDING:  # NaN is wrong too
        raise QkvError(
            "int8",
            _(
                "8-bit matrix products are wrong on this CPU, by up to {wrong:.0%} of the largest output",
                wrong=wrong,
            ),
            _("leave it out"),
        )


def saturating_matrices(inputs: int) -> tuple[Tensor, Tensor]:
    """Weights (8, inputs) and activations (4, inputs) in int64, of the largest sizes and all patterns of signs two by two.

    Every weight and every activation is 127 or -127: 8 bits hold them without rounding.
    """
    place = torch.arange(inputs)
    signs = torch.stack(
        [
            torch.ones_like(place),
            1 - 2 * (place % 2),
            1 - 2 * (place // 2 % 2),
            1 - 2 * (place * place // 3 % 2),
        ]
    )
    return 127 * torch.cat([signs, -signs]), 127 * signs
