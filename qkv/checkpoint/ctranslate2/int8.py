"""int8 quantization of a CTranslate2 specification, with weights that no CPU multiplies wrongly.

In: their specification in float32. Out: the same with int8 matrices and a scale for each output. Explained in
docs/ctranslate2.md, "int8 on every CPU".
"""

from typing import Any

import numpy as np

# CTranslate2's own conversion scales weights to 127. Without VNNI instructions MKL and oneDNN add two products of an unsigned
# activation (0 to 255) and a weight in 16 bits, which saturate at 32,767: 2 * 255 * 63 = 32,130 fits, 2 * 255 * 127 does not.
WEIGHT_BITS, LARGEST_WEIGHT = 7, 63


def quantize_weights(theirs: Any) -> None:
    """Replace each float32 matrix of a validated specification by int8 numbers from -63 to 63, in place."""
    from ctranslate2.specs.model_spec import NumpyVariable, visit_spec

    def quantize(layer: Any, name: str, value: Any) -> None:
        key = name.rsplit("/", 1)[-1]
        if isinstance(value, NumpyVariable) and hasattr(
            layer, f"{key}_scale"
        ):  # others name a matrix they share, or are no matrices
            whole, scales = quantized(value.numpy())
            setattr(layer, key, NumpyVariable(whole))
            setattr(layer, f"{key}_scale", NumpyVariable(scales))

    visit_spec(theirs, quantize)


def quantized(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(outputs, inputs) -> int8 of the same shape and the scales (outputs,) that CTranslate2 divides by."""
    largest = np.maximum(np.abs(weight).max(axis=1), 1e-12)
    scales = (LARGEST_WEIGHT / largest).astype(np.float32)
    return np.rint(weight * scales[:, None]).astype(np.int8), scales
