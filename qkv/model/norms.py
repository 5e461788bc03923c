"""Normalization layers: LayerNorm (torch's), RMSNorm and, for comparison, BatchNorm over tokens.

See docs/explanation/model.md, "Normalization".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.rms_norm import rms_norm
from qkv.model.spec import Norm


class RMSNorm(nn.RMSNorm):
    """gain * x / sqrt(mean(x^2) + eps)."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class TokenBatchNorm(nn.Module):
    """Batch norm: each channel is normalized over all tokens of the batch, padding included."""

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.mean = nn.Buffer(torch.zeros(d_model))
        self.variance = nn.Buffer(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])                        # (tokens, d_model)
        out = F.batch_norm(
            tokens, self.mean, self.variance, self.weight, self.bias, self.training, 0.1, self.eps
        )
        return out.view_as(x)


def make_norm(norm: Norm, d_model: int) -> nn.Module:
    match norm.kind:
        case "layer": return nn.LayerNorm(d_model, norm.eps)
        case "rms": return RMSNorm(d_model, norm.eps)
        case "batch": return TokenBatchNorm(d_model, norm.eps)
