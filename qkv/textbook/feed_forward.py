"""Feed-forward: each token by itself goes up to a wider space, through a bend, and down again.

Dense as in 2017, gated as today, or a mixture of experts of which a few answer each token.
Told in docs/model.md, "Feed-forward".
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from qkv.textbook.attention import softmax

Activation = Callable[[Tensor], Tensor]


def relu(x: Tensor) -> Tensor:
    """max(0, x)."""
    return x.clamp(min=0)


def relu_squared(x: Tensor) -> Tensor:
    """max(0, x)^2."""
    return x.clamp(min=0) ** 2


def gelu(x: Tensor) -> Tensor:
    """x Phi(x): the share of a normal distribution below x decides how much of x passes."""
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
    """One wide vector opens and shuts the other: (silu(x W_gate) * x W_up) W_down; with silu it is SwiGLU."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation = silu, bias: bool = False):
        super().__init__()
        self.gate_proj = nn.Linear(d_model, d_ff, bias)
        self.up_proj = nn.Linear(d_model, d_ff, bias)
        self.down_proj = nn.Linear(d_ff, d_model, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))     # (..., d_model)


class MixtureOfExperts(nn.Module):
    """The router picks a few experts for each token, and mixes their answers by their probabilities.

    p = softmax(x W_router);  y = sum over the `active` largest p_e of  p_e / (their sum) expert_e(x),
    plus, unweighted, the answer of every shared expert.
    """

    def __init__(self, d_model: int, d_ff: int, n_experts: int, active: int, n_shared: int = 0):
        super().__init__()
        self.active = active
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(d_model, d_ff) for _ in range(n_experts))
        self.shared = nn.ModuleList(GatedFeedForward(d_model, d_ff) for _ in range(n_shared))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)                           # (tokens, d_model)
        return torch.stack([self.answer(token) for token in tokens]).reshape(x.shape)

    def answer(self, token: Tensor) -> Tensor:
        """What the chosen and the shared experts say about one token."""
        chances, chosen = softmax(self.router(token)).topk(self.active)     # (active,) each
        shares = chances / chances.sum()
        routed = [share * self.experts[e](token) for share, e in zip(shares, chosen.tolist(), strict=True)]
        return torch.stack(routed + [expert(token) for expert in self.shared]).sum(dim=0)   # (d_model,)


def load_balancing_loss(router_logits: Tensor, active: int) -> Tensor:
    """n sum_e f_e P_e: equal to `active` when all n experts are asked equally often, larger the less even they are.

    f_e is the share of tokens that ask expert e, P_e its mean probability; only P_e has a gradient.
    """
    probabilities = softmax(router_logits)                  # (tokens, experts)
    n_tokens, n_experts = probabilities.shape
    chosen = probabilities.topk(active, dim=-1).indices     # (tokens, active)
    asking = torch.stack([(chosen == e).sum() for e in range(n_experts)])       # (experts,)
    return n_experts * (asking / n_tokens * probabilities.mean(dim=0)).sum()
