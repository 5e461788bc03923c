"""Matrices in 8 bits: a quarter of the bytes to read, and on a CPU two to four times as fast.

In: a matrix in float32. Out: a function of many rows that multiplies by its nearest matrix of whole numbers, -127 to 127,
one scale for each output; what comes in is rounded to 8 bits at each call. Told in docs/performance.md, "Decoding".
"""

import warnings

import torch
from torch import Tensor

from qkv.errors import QkvError
from qkv.generate.fast_parts import Map
from qkv.generate.native import can_be_native
from qkv.language import say

ENGINE = "fbgemm"  # the others look for instructions that some machines announce and do not have


def can_be_int8(weight: Tensor) -> bool:
    """Whether this processor and these numbers are for it, by the native library or by fbgemm."""
    if can_be_native(weight):
        return True
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and ENGINE in torch.backends.quantized.supported_engines


def no_int8() -> QkvError:
    return QkvError("int8", say("this model has no such step here", "此模型在这里没有这样的一步"), say("leave it out", "请去掉"))


def int8_product(weight: Tensor, bias: Tensor | None) -> Map:
    """x W^T + b for (rows, width), with W and x in 8 bits and sums in 32."""
    scales = weight.abs().amax(dim=1).clamp_min(1e-12) / 127
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = ENGINE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch wants another library for quantising, but its product is this one
            whole = torch.quantize_per_channel(weight, scales.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        laid_out = torch.ops.quantized.linear_prepack(whole, bias)
    finally:
        torch.backends.quantized.engine = before
    run = torch.ops.quantized.linear_dynamic.default
    return lambda x: run(x, laid_out)
