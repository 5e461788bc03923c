"""Numbers as they travel: little-endian binary, and JSON that every browser reads.

In: tensors and values. Out: arrays and text; the server sends them, the offline file holds them.
Told in docs/explore.md, "The page".
"""

import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_numbers(tensor: Tensor) -> np.ndarray:
    """Little-endian float32, or bytes."""
    flat = tensor.detach().cpu()
    if flat.dtype == torch.uint8:
        return flat.contiguous().numpy()
    return flat.float().contiguous().numpy().astype("<f4", copy=False)


def to_json(value: Any) -> str:
    """JSON that every browser reads: what is not finite is null."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), ensure_ascii=False)


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
