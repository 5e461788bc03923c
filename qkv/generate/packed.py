"""Products with a fixed matrix: laid out once as the processor reads it, the activation done on the way out.

In: a matrix, a bias and the name of an activation. Out: a function of many rows. On a CPU in float32 oneDNN's layout
spares rearranging the matrix at every call; elsewhere it is torch's plain product. Told in docs/embedding.md, "Use".
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.feed_forward import ACTIVATIONS

Map = Callable[[Tensor], Tensor]

# What oneDNN can do to a result before it leaves the registers: its name, and which kind.
FUSED = {"relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "silu": ("swish", "")}


def packed(maps: Sequence[nn.Linear], activation: str | None = None) -> Map:
    """activation(x W^T + b) for (rows, width), the matrices of several maps of one input side by side."""
    weight = torch.cat([one.weight.detach() for one in maps])
    biases = [one.bias.detach() for one in maps if one.bias is not None]
    bias = torch.cat(biases) if biases else None
    if has_onednn(weight) and (activation is None or activation in FUSED):
        return _by_onednn(weight, bias, *(FUSED[activation] if activation else ("none", "")))
    if activation is None:
        return lambda x: F.linear(x, weight, bias)
    act = ACTIVATIONS[activation]
    return lambda x: act(F.linear(x, weight, bias))


def has_onednn(weight: Tensor) -> bool:
    """Whether this torch brings the library, and these numbers are for it."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def _by_onednn(weight: Tensor, bias: Tensor | None, name: str, kind: str) -> Map:
    ops = torch.ops.mkldnn
    laid_out, run = ops._reorder_linear_weight(weight), ops._linear_pointwise.default
    return lambda x: run(x, laid_out, bias, name, [], kind)
