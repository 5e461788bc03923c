"""Feed-forward layers, applied to each token separately: down(act(up(x))), or gated: down(act(gate(x)) * up(x)).

About two thirds of a model's weights are here. Explained in docs/model.md, "Feed-forward".
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.relu2 import relu2
from qkv.model import spec as s
from qkv.model.experts import ExpertFeedForward


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu2": relu2, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "silu": F.silu,
}  # fmt: skip


class DenseFeedForward(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, dense: s.Dense, d_model: int):
        super().__init__()
        self.activation = ACTIVATIONS[dense.activation]
        self.up_proj = nn.Linear(d_model, dense.d_ff, dense.bias)
        self.down_proj = nn.Linear(dense.d_ff, d_model, dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))  # (..., d_ff) in the middle


class GatedFeedForward(nn.Module):
    """down(act(gate(x)) * up(x)): the gated linear unit; SwiGLU with silu."""

    def __init__(self, gated: s.Gated, d_model: int):
        super().__init__()
        self.activation = ACTIVATIONS[gated.activation]
        self.gate_proj = nn.Linear(d_model, gated.d_ff, gated.bias)
        self.up_proj = nn.Linear(d_model, gated.d_ff, gated.bias)
        self.down_proj = nn.Linear(gated.d_ff, d_model, gated.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


def make_feed_forward(part: s.FeedForward, d_model: int) -> nn.Module:
    match part:
        case s.Dense(): return DenseFeedForward(part, d_model)
        case s.Gated(): return GatedFeedForward(part, d_model)
        case s.Experts():
            shared = make_feed_forward(part.shared, d_model) if part.shared else None
            return ExpertFeedForward(part, d_model, ACTIVATIONS[part.each.activation], shared)
