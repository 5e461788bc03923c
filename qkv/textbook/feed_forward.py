"""Feed-forward layers: dense (2017), gated (SwiGLU) and mixture of experts (MoE).

See docs/explanation/model.md, "Feed-forward".
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.textbook.attention import softmax

__all__ = [
    "FeedForward", "GatedFeedForward", "MixtureOfExperts", "gelu",
    "gelu_tanh", "load_balancing_loss", "relu", "relu_squared",
    "silu",
]

Activation = Callable[[Tensor], Tensor]


def relu(x: Tensor) -> Tensor:
    """max(0, x)."""
    return x.clamp(min=0)


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)^2."""
    return x.clamp(min=0) ** 2


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), where Phi is the cumulative distribution function of the normal distribution."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU as GPT-2 computes it: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))) / 2


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x), also called swish."""
    return x * torch.sigmoid(x)


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, equation 2 of the paper."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = relu, bias: bool = True):
        super().__init__()
        self.up_proj = nn.Linear(d_model, d_ff, bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))     # (..., d_model)


class GatedFeedForward(nn.Module):
    """Gated linear unit: (silu(x W_gate) * x W_up) W_down; with silu it is SwiGLU."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = silu, bias: bool = False):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        gate = self.activation(self.gate_proj(x))           # (..., d_ff)
        return self.down_proj(gate * self.up_proj(x))       # (..., d_model)


class MixtureOfExperts(nn.Module):
    """Mixture of experts: a router sends each token to its top-k experts.

    p = softmax(x W_router);  y = sum over the `n_experts_per_token` largest p_e of
    p_e / (their sum) expert_e(x), plus the outputs of all shared experts.
    """

    def __init__(
        self, d_model: int, d_ff: int, n_experts: int, n_experts_per_token: int, n_shared: int = 0
    ):
        super().__init__()
        self.n_experts_per_token = n_experts_per_token
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(d_model, d_ff) for _ in range(n_experts))
        self.shared = nn.ModuleList(GatedFeedForward(d_model, d_ff) for _ in range(n_shared))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)                           # (tokens, d_model)
        return torch.stack([self.forward_token(token) for token in tokens]).reshape(x.shape)

    def forward_token(self, token: Tensor) -> Tensor:
        """The weighted sum of the selected experts plus the shared experts, (d_model,)."""
        probs, selected = softmax(self.router(token)).topk(self.n_experts_per_token)
        pairs = zip(probs / probs.sum(), selected.tolist(), strict=True)
        routed = [weight * self.experts[e](token) for weight, e in pairs]
        return torch.stack(routed + [expert(token) for expert in self.shared]).sum(dim=0)


def load_balancing_loss(router_logits: Tensor, n_experts_per_token: int) -> Tensor:
    """n sum_e f_e P_e: `n_experts_per_token` if all n experts are used equally, larger otherwise.

    f_e is the fraction of tokens sent to expert e, P_e its mean probability;
    only P_e has a gradient.
    """
    probs = softmax(router_logits)                          # (tokens, experts)
    n_tokens, n_experts = probs.shape
    selected = probs.topk(n_experts_per_token, dim=-1).indices      # (tokens, active)
    counts = torch.stack([(selected == e).sum() for e in range(n_experts)])     # (experts,)
    return n_experts * (counts / n_tokens * probs.mean(dim=0)).sum()
