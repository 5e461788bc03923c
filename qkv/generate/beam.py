"""Beam search: several beginnings of a translation are kept alive, and the best whole one wins.

In: source ids (batch, source), ending in <eos>. Out: the n best translations of each sentence with their scores. The
rules are those of textbook/beam.py, for all sentences at once. Told in docs/translation.md, "Beam search".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.generate.best import best_tokens
from qkv.generate.step import as_limits, at_rest, make_stepper, never_said
from qkv.generate.texts import Hypothesis
from qkv.model.transformer import Transformer


@dataclass(frozen=True)
class BeamRules:
    """The settings of a search; alpha is the power of the length penalty ((5 + length) / 6)^alpha."""

    bos_id: int
    eos_id: int
    pad_id: int
    size: int = 4
    alpha: float = 0.6

    def penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha


def beam_search(
    model: Transformer, source_ids: Tensor, real: Tensor | None, rules: BeamRules, max_len: int | Tensor
) -> list[list[Hypothesis]]:
    """At most `rules.size` translations of each sentence, best first; none is longer than its `max_len`."""
    with at_rest(model):
        search = Search(rules, as_limits(model, max_len, source_ids), model.embed.weight.dtype)
        stepper = make_stepper(model, source_ids, real)
        while True:
            rows, stay = search.advance(stepper.step(search.last_ids))
            if not len(rows):
                return search.finished.hypotheses()
            if len(rows) > 1 or stay is not None:  # a single row only ever follows itself
                stepper.keep(rows, stay)


class Search:
    """Where all searches stand; the numbers in brackets are the rules of textbook/beam.py."""

    def __init__(self, rules: BeamRules, limits: Tensor, dtype: torch.dtype):
        self.rules, self.limits, self.length = rules, limits, 0
        n, device = len(limits), limits.device
        self.log_prob: Tensor = torch.zeros(n, 1, dtype=dtype, device=device)     # (sentences, live), best first
        self.finished = Finished(rules, int(limits.max()), self.log_prob)
        self.forbidden = never_said(limits, rules.bos_id, rules.eos_id, rules.pad_id)
        self.where = torch.arange(n, device=device)                               # which sentence is searched here
        self.ids = torch.empty(n, 1, 0, dtype=torch.long, device=device)          # (sentences, live, length)
        self.best_penalty = self.log_prob.new_tensor([rules.penalty(limit) for limit in limits.tolist()])

    @property
    def last_ids(self) -> Tensor:
        """The token that each row reads next, (sentences * live,)."""
        if self.length == 0:
            return self.where.new_full((len(self.where),), self.rules.bos_id)
        return self.ids[:, :, -1].flatten()

    def advance(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """One token further; gives the old row of each new row, and the sentences that go on (None: all)."""
        self.length += 1
        parent, token, log_prob = self._candidates(logits)                        # (sentences, candidates)
        ended = token == self.rules.eos_id
        self._set_aside(parent, token, log_prob, ended)
        order = ended.byte().argsort(dim=1, stable=True)[:, : self.rules.size]    # [2] those that do not end, in order
        parent, token = parent.gather(1, order), token.gather(1, order)           # (sentences, live)
        rows = parent + torch.arange(len(parent), device=parent.device)[:, None] * self.ids.shape[1]
        self.ids = self._prolonged(parent, token)
        self.log_prob = log_prob.masked_fill(ended, -math.inf).gather(1, order)
        return self._leave(rows, self._done())

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1] The best 2 * size ways to add a token: the live one prolonged, the token, the sum of log-probabilities."""
        whole = logits.logsumexp(dim=-1, keepdim=True)                            # (rows, 1)
        gains, tokens = best_tokens(logits.index_fill_(1, self.forbidden, -math.inf), 2 * self.rules.size)
        width = gains.shape[1]
        sums = (gains - whole).view(*self.log_prob.shape, width) + self.log_prob[..., None]
        sums, order = sums.flatten(1).sort(dim=1, descending=True, stable=True)   # equals: by live rank, then by token
        order = order[:, : 2 * self.rules.size]                                   # (sentences, candidates)
        return order // width, tokens.view(len(sums), -1).gather(1, order), sums[:, : order.shape[1]]

    def _set_aside(self, parent: Tensor, token: Tensor, log_prob: Tensor, ended: Tensor) -> None:
        """[2] Those that end, if they stand among the first `size`."""
        first = slice(self.rules.size)
        whole = ended[:, first] & (log_prob[:, first] > -math.inf)
        if bool(whole.any()):
            ids = self._prolonged(parent[:, first], token[:, first])
            self.finished.add(self.where, ids, log_prob[:, first].masked_fill(~whole, -math.inf))

    def _prolonged(self, parent: Tensor, token: Tensor) -> Tensor:
        prefix = self.ids.gather(1, parent[..., None].expand(-1, -1, self.length - 1))
        return torch.cat([prefix, token[..., None]], dim=2)                       # (sentences, ..., length)

    def _done(self) -> Tensor:
        """[4], [5] Which sentences are found: at their limit, or nothing alive can beat the worst that is finished."""
        at_limit = self.limits == self.length
        if bool(at_limit.any()):
            self.finished.add(self.where, self.ids, self.log_prob.masked_fill(~at_limit[:, None], -math.inf))
        worst = self.finished.score[self.where, -1]                               # -inf while there are fewer than size
        done = at_limit | (self.log_prob[:, 0] / self.best_penalty <= worst)
        return done | (worst > -math.inf) if self.rules.size == 1 else done

    def _leave(self, rows: Tensor, done: Tensor) -> tuple[Tensor, Tensor | None]:
        if not bool(done.any()):
            return rows.flatten(), None
        stay = (~done).nonzero()[:, 0]
        self.where, self.ids, self.log_prob = self.where[stay], self.ids[stay], self.log_prob[stay]
        self.limits, self.best_penalty = self.limits[stay], self.best_penalty[stay]
        return rows[stay].flatten(), stay


class Finished:
    """The best whole translations of every sentence, best first; an empty place scores -inf."""

    def __init__(self, rules: BeamRules, longest: int, like: Tensor):
        self.rules, n = rules, len(like)
        self.ids = torch.full((n, rules.size, longest), rules.pad_id, device=like.device)
        self.length = torch.zeros(n, rules.size, dtype=torch.long, device=like.device)
        self.log_prob, self.score = (like.new_full((n, rules.size), -math.inf) for _ in range(2))

    def add(self, where: Tensor, ids: Tensor, log_prob: Tensor) -> None:
        """[3] The best `size` of those there are and the new ones (sentences, new, length), of equals the earlier."""
        score = torch.cat([self.score[where], log_prob / self.rules.penalty(ids.shape[2])], dim=1)
        score, order = score.sort(dim=1, descending=True, stable=True)
        order = order[:, : self.rules.size]
        self.score[where] = score[:, : self.rules.size]
        self.log_prob[where] = torch.cat([self.log_prob[where], log_prob], dim=1).gather(1, order)
        length = torch.full_like(ids[..., 0], ids.shape[2])
        self.length[where] = torch.cat([self.length[where], length], dim=1).gather(1, order)
        padded = torch.nn.functional.pad(ids, (0, self.ids.shape[2] - ids.shape[2]), value=self.rules.pad_id)
        both = torch.cat([self.ids[where], padded], dim=1)                        # (sentences, size + new, longest)
        self.ids[where] = both.gather(1, order[..., None].expand(-1, -1, both.shape[2]))

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All sentences' translations, as plain values."""
        columns = self.ids.tolist(), self.length.tolist(), self.log_prob.tolist(), self.score.tolist()
        return [
            [Hypothesis(ids[:n], log_prob, score) for ids, n, log_prob, score in zip(*row, strict=True) if n]
            for row in zip(*columns, strict=True)
        ]

