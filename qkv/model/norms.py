"""Norms: they keep the stream's size in bounds.

In: the stream. Out: the same, brought to unit size and stretched by a trained gain. LayerNorm and RMSNorm are torch's;
BatchNorm is here to be compared. Told in docs/model.md, "Norms".
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.gradients import RMSNorm
from qkv.model.spec import Norm


class TokenBatchNorm(nn.Module):
    """Each channel is normalised over all tokens of the batch (padding counts too, and buckets leave almost none)."""

    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.mean, self.variance = nn.Buffer(torch.zeros(d_model)), nn.Buffer(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])  # (tokens, d_model)
        out = F.batch_norm(flat, self.mean, self.variance, self.weight, self.bias, self.training, 0.1, self.eps)
        return out.view_as(x)


def make_norm(norm: Norm, d_model: int) -> nn.Module:
    match norm.kind:
        case "layer": return nn.LayerNorm(d_model, norm.eps)
        case "rms": return RMSNorm(d_model, norm.eps)
        case "batch": return TokenBatchNorm(d_model, norm.eps)
