"""Norms: vectors of any size in, vectors of a steady size out, with a learned scale.

Layer and RMS norm look at one token by itself; batch norm looks at one component over all tokens.
Told in docs/model.md, "Norms".
"""

import torch
from torch import Tensor, nn


class LayerNorm(nn.Module):
    """Each token gets mean 0 and variance 1 over its components: weight (x - mean) / sqrt(var + eps) + bias."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)                 # (..., 1)
        variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)     # (..., 1), divided by d, not by d - 1
        return self.weight * (x - mean) / torch.sqrt(variance + self.eps) + self.bias


class RMSNorm(nn.Module):
    """Each token gets length sqrt(d): weight x / sqrt(mean(x^2) + eps); no mean is taken off, no bias added."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        mean_square = (x ** 2).mean(dim=-1, keepdim=True)   # (..., 1)
        return self.weight * x / torch.sqrt(mean_square + self.eps)


class BatchNorm(nn.Module):
    """Each component gets mean 0 and variance 1 over all real tokens of the batch.

    While training, the batch speaks for itself and the running statistics follow it; afterwards they stand for it,
    so that a sentence no longer depends on its batch mates. Padding is normalised like the rest but never counted.
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

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            tokens = x.flatten(0, -2) if padding is None else x[padding]    # (real tokens, d_model)
            mean = tokens.mean(dim=0)                       # (d_model,)
            variance = ((tokens - mean) ** 2).mean(dim=0)   # (d_model,)
            self.remember(mean.detach(), variance.detach(), len(tokens))
        return self.weight * (x - mean) / torch.sqrt(variance + self.eps) + self.bias

    def remember(self, mean: Tensor, variance: Tensor, n: int) -> None:
        """Move the running statistics a little towards the batch's; n / (n - 1) makes the variance unbiased."""
        self.mean += self.momentum * (mean - self.mean)
        self.variance += self.momentum * (variance * n / (n - 1) - self.variance)
