"""A mixture of experts: many feed-forwards, of which a token asks only a few.

In: the stream. Out: the weighted sum of the chosen experts' answers, and of the shared one's. All tokens of one expert
are laid side by side, so all experts answer in one batched product. Told in docs/model.md, "Experts".
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from qkv.model import spec as s


class Router(nn.Module):
    """score = softmax or sigmoid of a linear map; the best `n_active` experts answer, weighted by their score."""

    def __init__(self, experts: s.Experts, d_model: int):
        super().__init__()
        self.spec = experts
        self.weight = nn.Parameter(torch.empty(experts.n_experts, d_model))
        self.balance_bias = nn.Parameter(torch.zeros(experts.n_experts)) if experts.balance_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(tokens, d_model) -> the chosen experts, their weights (tokens, active), all scores (tokens, experts)."""
        logits = x @ self.weight.T                                            # (tokens, experts)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))  # bf16 has too few digits to rank and share by
        scores = logits.softmax(dim=-1) if self.spec.scoring == "softmax" else logits.sigmoid()
        chosen = self.choose(scores)                                          # (tokens, active)
        weights = scores.gather(1, chosen)
        if self.spec.normalised:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return chosen, weights * self.spec.scale, scores

    def choose(self, scores: Tensor) -> Tensor:
        """The bias balances the choice and never the weights; a group counts by its best one (or two, with a bias)."""
        wanted = scores if self.balance_bias is None else scores + self.balance_bias
        if self.spec.n_active_groups < self.spec.n_groups:
            groups = wanted.unflatten(-1, (self.spec.n_groups, -1))           # (tokens, groups, experts of a group)
            best = groups.topk(1 if self.balance_bias is None else min(2, groups.shape[-1]), dim=-1).values.sum(dim=-1)
            winners = best.topk(self.spec.n_active_groups).indices
            kept = torch.zeros_like(best, dtype=torch.bool).scatter(1, winners, True)
            wanted = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)
        return wanted.topk(self.spec.n_active, dim=-1).indices


class StackedFeedForward(nn.Module):
    """The same feed-forward `n_experts` times, weights side by side: (experts, tokens, d_model) -> the same shape."""

    def __init__(self, experts: s.Experts, d_model: int, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        n, each = experts.n_experts, experts.each
        self.activation = activation
        self.gate_proj = nn.Parameter(torch.empty(n, each.d_ff, d_model)) if isinstance(each, s.Gated) else None
        self.up_proj = nn.Parameter(torch.empty(n, each.d_ff, d_model))
        self.down_proj = nn.Parameter(torch.empty(n, d_model, each.d_ff))

    def forward(self, x: Tensor) -> Tensor:
        wide = x @ self.up_proj.mT                                            # (experts, tokens, d_ff)
        wide = self.activation(wide) if self.gate_proj is None else self.activation(x @ self.gate_proj.mT) * wide
        return wide @ self.down_proj.mT                                       # (experts, tokens, d_model)


class ExpertFeedForward(nn.Module):
    """y = sum over the chosen experts e of weight_e * FFN_e(x), plus the shared FFN(x)."""

    def __init__(
        self, experts: s.Experts, d_model: int, activation: Callable[[Tensor], Tensor], shared: nn.Module | None
    ):
        super().__init__()
        self.router = Router(experts, d_model)
        self.experts = StackedFeedForward(experts, d_model, activation)
        self.shared = shared
        self.balance = torch.zeros(())  # the load-balancing loss of the last pass

    def __getstate__(self) -> dict[str, Any]:
        """A copy leaves the graph of the last pass behind, for torch copies no graphs."""
        return self.__dict__ | {"balance": self.balance.detach()}

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])                                   # (tokens, d_model)
        chosen, weights, scores = self.router(tokens)
        self.balance = balance_loss(chosen, scores)
        out = self.answer(tokens, chosen, weights).view_as(x)
        return out if self.shared is None else out + self.shared(x)

    def answer(self, tokens: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Lay the tokens of each expert side by side, ask all experts at once, send the answers home."""
        n_experts, n_active = self.router.spec.n_experts, chosen.shape[1]
        expert = chosen.flatten()                                             # (tokens * active,)
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=n_experts)
        seat = torch.arange(len(expert), device=expert.device) - (counts.cumsum(0) - counts)[expert[order]]
        seats = int(counts.max())
        place = expert[order] * seats + seat                                  # where each asked token sits
        home = order // n_active
        asked = tokens.new_zeros(n_experts * seats, tokens.shape[1]).index_copy(0, place, tokens[home])
        answers = self.experts(asked.view(n_experts, seats, -1)).flatten(0, 1)[place]
        answers = (answers * weights.flatten()[order, None]).to(tokens.dtype)  # autocast answers in bf16, the stream is float32
        return torch.zeros_like(tokens).index_add(0, home, answers)


def balance_loss(chosen: Tensor, scores: Tensor) -> Tensor:
    """n * sum over experts of (share of tokens) * (mean score): 1 x active when balanced, larger when not."""
    n_experts = scores.shape[-1]
    share = torch.bincount(chosen.flatten(), minlength=n_experts).to(scores.dtype) / len(scores)
    return n_experts * (share * scores.mean(dim=0)).sum()
