"""Dropout as a module, active in training mode only. The operation is in kernels/dropout.py."""

from torch import Tensor, nn

from qkv.kernels.dropout import dropout


class Dropout(nn.Module):
    """In training each element is 0 with probability p, else divided by 1 - p."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training and self.p else x

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """residual + dropout(x), in one pass."""
        return dropout(x, self.p, residual) if self.training and self.p else residual + x
