"""Mixture of experts (MoE): a router sends each token to its top-k experts.

Tokens are grouped by expert, so that all experts run in one batched product.
See docs/explanation/model.md, "Mixture of experts".
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import spec as s


class Router(nn.Module):
    """Scores = softmax or sigmoid of a linear map; selects the top-k experts of each token."""

    def __init__(self, spec: s.MixtureOfExperts, d_model: int):
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.n_experts, d_model))
        bias = nn.Parameter(torch.zeros(spec.n_experts)) if spec.score_correction_bias else None
        self.score_correction_bias = bias

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Route (tokens, d_model).

        Returns the selected experts and their weights, both (tokens, active), and all scores,
        (tokens, experts).
        """
        logits = x @ self.weight.T                                 # (tokens, experts)
        # bf16 has too few digits to rank the experts and weight their outputs
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        softmax = self.spec.scoring == "softmax"
        scores = logits.softmax(dim=-1) if softmax else logits.sigmoid()
        selected = self.select(scores)                             # (tokens, active)
        weights = scores.gather(1, selected)
        if self.spec.norm_topk_prob:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return selected, weights * self.spec.routed_scaling_factor, scores

    def select(self, scores: Tensor) -> Tensor:
        """Top-k experts of each token, (tokens, active).

        The bias changes the selection, not the weights. A group's score is that of its best expert,
        or the sum of its best two with a bias (DeepSeek-V3).
        """
        bias, spec = self.score_correction_bias, self.spec
        biased = scores if bias is None else scores + bias
        if spec.n_active_groups < spec.n_groups:
            groups = biased.unflatten(-1, (spec.n_groups, -1))     # (tokens, groups, group size)
            n_best = 1 if bias is None else min(2, groups.shape[-1])
            group_scores = groups.topk(n_best, dim=-1).values.sum(dim=-1)
            top_groups = group_scores.topk(spec.n_active_groups).indices
            active = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, top_groups, True)
            biased = groups.masked_fill(~active[..., None], -torch.inf).flatten(1)
        return biased.topk(spec.n_experts_per_token, dim=-1).indices


class StackedFeedForward(nn.Module):
    """All experts with stacked weights: (experts, tokens, d_model) -> the same shape."""

    def __init__(
        self, spec: s.MixtureOfExperts, d_model: int, activation: Callable[[Tensor], Tensor]
    ):
        super().__init__()
        n, d_ff, gated = spec.n_experts, spec.expert.d_ff, isinstance(spec.expert, s.Gated)
        self.activation = activation
        self.gate_proj = nn.Parameter(torch.empty(n, d_ff, d_model)) if gated else None
        self.up_proj = nn.Parameter(torch.empty(n, d_ff, d_model))
        self.down_proj = nn.Parameter(torch.empty(n, d_model, d_ff))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x @ self.up_proj.mT                               # (experts, tokens, d_ff)
        if self.gate_proj is None:
            hidden = self.activation(hidden)
        else:
            hidden = self.activation(x @ self.gate_proj.mT) * hidden
        return hidden @ self.down_proj.mT                          # (experts, tokens, d_model)


class ExpertFeedForward(nn.Module):
    """y = sum over the selected experts e of weight_e * FFN_e(x), plus the shared FFN(x)."""

    def __init__(
        self,
        spec: s.MixtureOfExperts,
        d_model: int,
        activation: Callable[[Tensor], Tensor],
        shared: nn.Module | None,
    ):
        super().__init__()
        self.router = Router(spec, d_model)
        self.experts = StackedFeedForward(spec, d_model, activation)
        self.shared = shared
        self.router_aux_loss = torch.zeros(())  # the load-balancing loss of the last pass

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no autograd graph of the last pass, because torch cannot copy one."""
        return self.__dict__ | {"router_aux_loss": self.router_aux_loss.detach()}

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])                        # (tokens, d_model)
        selected, weights, scores = self.router(tokens)
        self.router_aux_loss = load_balancing_loss(selected, scores)
        out = self.routed(tokens, selected, weights).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def routed(self, tokens: Tensor, selected: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the selected experts' outputs, (tokens, d_model).

        Sorts the tokens by expert, pads each expert's tokens to the same number, runs all experts
        at once, and scatters the outputs back to token order.
        """
        n_experts, n_active = self.router.spec.n_experts, selected.shape[1]
        expert = selected.flatten()                                # (tokens * active,)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=n_experts)
        starts = (counts.cumsum(0) - counts)[expert[order]]
        index_in_expert = torch.arange(len(expert), device=expert.device) - starts
        capacity = int(counts.max())
        slot = expert[order] * capacity + index_in_expert          # row among all experts' inputs
        token = order // n_active
        inputs = tokens.new_zeros(n_experts * capacity, tokens.shape[1])
        inputs = inputs.index_copy(0, slot, tokens[token])
        outputs = self.experts(inputs.view(n_experts, capacity, -1)).flatten(0, 1)[slot]
        # under autocast the outputs are bf16, the residual stream is float32
        outputs = (outputs * weights.flatten()[order, None]).to(tokens.dtype)
        return torch.zeros_like(tokens).index_add(0, token, outputs)


def load_balancing_loss(selected: Tensor, scores: Tensor) -> Tensor:
    """n * sum_e (fraction of tokens of expert e) * (mean score of e) (Switch Transformer).

    It equals the number of active experts when all n are used equally, and is larger otherwise.
    """
    n_experts = scores.shape[-1]
    counts = torch.bincount(selected.flatten(), minlength=n_experts)
    fractions = counts.to(scores.dtype) / len(scores)
    return n_experts * (fractions * scores.mean(dim=0)).sum()
