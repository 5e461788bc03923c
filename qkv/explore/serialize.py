"""Serialization of answers: tensors as little-endian bytes, other values as strict JSON."""

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

JsonObject = dict[str, Any]


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Little-endian float32, or uint8."""
    values = tensor.detach().cpu()
    if values.dtype == torch.uint8:
        return values.numpy()
    return values.float().numpy().astype("<f4", copy=False)


def to_json(value: Any) -> str:
    """Strict JSON, which browsers require: NaN and infinities become null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False)


def finite(value: Any) -> Any:
    """The value with NaN and infinities replaced by None."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
