"""Normalization layers: LayerNorm and RMSNorm over each token, BatchNorm over all tokens.

See docs/explanation/model.md, "Normalization".
"""

import torch
from torch import Tensor, nn

__all__ = ["BatchNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 for each token: weight (x - mean) / sqrt(var + eps) + bias."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)                 # (..., 1)
        variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)     # (..., 1), divided by d
        return self.weight * (x - mean) / torch.sqrt(variance + self.eps) + self.bias


class RMSNorm(nn.Module):
    """Root mean square 1 for each token: weight x / sqrt(mean(x^2) + eps)."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean_square = (x ** 2).mean(dim=-1, keepdim=True)   # (..., 1)
        return self.weight * x / torch.sqrt(mean_square + self.eps)


class BatchNorm(nn.Module):
    """Mean 0 and variance 1 for each component over all tokens of the batch, without padding.

    Training uses the statistics of the batch and updates the running statistics; evaluation uses
    the running statistics, so that results are batch-invariant.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, d_model: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps, self.momentum = eps, momentum
        self.register_buffer("mean", torch.zeros(d_model))
        self.register_buffer("variance", torch.ones(d_model))

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            tokens = x.flatten(0, -2) if attention_mask is None else x[attention_mask]
            mean = tokens.mean(dim=0)                       # (d_model,)
            variance = ((tokens - mean) ** 2).mean(dim=0)   # (d_model,)
            self.update_statistics(mean.detach(), variance.detach(), len(tokens))
        return self.weight * (x - mean) / torch.sqrt(variance + self.eps) + self.bias

    def update_statistics(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Exponential moving average; n / (n - 1) makes the variance unbiased."""
        self.mean += self.momentum * (mean - self.mean)
        self.variance += self.momentum * (variance * n / (n - 1) - self.variance)
