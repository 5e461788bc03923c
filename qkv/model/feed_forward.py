"""Feed-forward layers, applied to each token: down(act(up(x))), or down(act(gate(x)) * up(x)).

About two thirds of a model's weights are here. See docs/explanation/model.md, "Feed-forward".
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.kernels.relu2 import relu2
from qkv.model import spec as s
from qkv.model.custom import make_custom
from qkv.model.experts import ExpertFeedForward


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu2": relu2, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "silu": F.silu,
}  # fmt: skip


class DenseFeedForward(nn.Module):
    """Feed-forward of 2017: down(act(up(x)))."""

    def __init__(self, spec: s.Dense, d_model: int):
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.up_proj = nn.Linear(d_model, spec.d_ff, spec.bias)
        self.down_proj = nn.Linear(spec.d_ff, d_model, spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))  # (..., d_ff) in the middle


class GatedFeedForward(nn.Module):
    """Gated linear unit: down(act(gate(x)) * up(x)); SwiGLU with silu."""

    def __init__(self, spec: s.Gated, d_model: int):
        super().__init__()
        self.activation = ACTIVATIONS[spec.activation]
        self.gate_proj = nn.Linear(d_model, spec.d_ff, spec.bias)
        self.up_proj = nn.Linear(d_model, spec.d_ff, spec.bias)
        self.down_proj = nn.Linear(spec.d_ff, d_model, spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


def make_feed_forward(spec: s.FeedForward, d_model: int) -> nn.Module:
    match spec:
        case s.Dense(): return DenseFeedForward(spec, d_model)
        case s.Gated(): return GatedFeedForward(spec, d_model)
        case s.MixtureOfExperts():
            shared = make_feed_forward(spec.shared_expert, d_model) if spec.shared_expert else None
            return ExpertFeedForward(spec, d_model, ACTIVATIONS[spec.expert.activation], shared)
        case s.Custom(): return make_custom(spec, nn.Module, d_model)
