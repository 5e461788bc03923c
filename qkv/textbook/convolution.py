"""A convolution over positions, dilated and causal or centered, as a mixer in place of attention.

The fast version is in qkv/model/mixers.py. See docs/explanation/model.md, "Other token mixers".
"""

import torch
from torch import Tensor


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1, causal: bool = True
) -> Tensor:
    """y_t = b + sum_j W_j x_(t + offset_j); x outside of the sequence is 0.

    weight is (width, d_out, d_in). The offsets are `dilation` apart and end at 0 if causal, else
    they are centered: with width 3 and dilation 2 they are -4, -2, 0 or -2, 0, 2.
    """
    width, length = len(weight), x.shape[1]
    last = 0 if causal else width // 2
    offsets = [dilation * (j - (width - 1) + last) for j in range(width)]
    y = bias.expand(*x.shape[:2], -1).clone()               # (batch, length, d_out)
    for matrix, offset in zip(weight, offsets, strict=True):
        for t in range(max(0, -offset), min(length, length - offset)):
            y[:, t] += x[:, t + offset] @ matrix.T          # (batch, d_out)
    return y


def receptive_field(width: int, dilations: list[int]) -> int:
    """How many positions reach one output of stacked causal convolutions: 1 + sum (width - 1) d.

    Dilations of 1, 2, 4, ... double it with each layer (WaveNet).

    >>> receptive_field(2, [1, 2, 4, 8])
    16
    """
    return 1 + sum((width - 1) * dilation for dilation in dilations)


def effective_field(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Which inputs reach the last output, by gradients: (length,) booleans."""
    (gradient,) = torch.autograd.grad(outputs[0, -1].sum(), inputs)
    return gradient[0].ne(0).any(dim=-1)                    # (length,)
