"""int8 quantization of a CTranslate2 specification, with 7-bit weights that never saturate.

See docs/guides/import-export.md, "int8 quantization".
"""

from typing import Any

import numpy as np

# CTranslate2's own conversion scales weights to 127. Without VNNI instructions MKL and oneDNN add
# two products of an unsigned activation (0 to 255) and a weight in 16 bits, which saturate at
# 32,767: 2 * 255 * 63 = 32,130 fits, 2 * 255 * 127 does not.
WEIGHT_BITS, MAX_WEIGHT = 7, 63


def quantize_weights(model: Any) -> None:
    """Quantize each float32 matrix of a validated specification to -63 ... 63, in place."""
    from ctranslate2.specs.model_spec import NumpyVariable, visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        key = name.rsplit("/", 1)[-1]
        if isinstance(value, NumpyVariable) and hasattr(
            layer, f"{key}_scale"
        ):  # others refer to a shared matrix, or are not matrices
            weight, scales = quantized(value.numpy())
            setattr(layer, key, NumpyVariable(weight))
            setattr(layer, f"{key}_scale", NumpyVariable(scales))

    visit_spec(model, quantize)


def quantized(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(out, in) -> int8 weights of the same shape and scales (out,): weight = int8 / scale."""
    largest = np.maximum(np.abs(weight).max(axis=1), 1e-12)
    scales = (MAX_WEIGHT / largest).astype(np.float32)
    return np.rint(weight * scales[:, None]).astype(np.int8), scales
