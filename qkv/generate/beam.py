"""Beam search: several beginnings of a translation are kept alive, and the best whole one wins.

In: source ids (batch, source), ending in <eos>. Out: the n best translations of each sentence with their scores. The
rules are those of textbook/beam.py, for all sentences at once. Told in docs/translation.md, "Beam search".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.engine.stepper import decode_threads, make_stepper
from qkv.generate.backend import Hypothesis
from qkv.generate.decode import source_rows, suppressed_ids, target_limits
from qkv.kernels.topk import best_sums, log_sum
from qkv.model.eval_mode import eval_mode
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
    model: Transformer,
    source_ids: Tensor,
    real: Tensor | None,
    rules: BeamRules,
    max_len: int | Tensor,
    int8: bool = False,
) -> list[list[Hypothesis]]:
    """At most `rules.size` translations of each sentence, best first; none is longer than its `max_len`."""
    with eval_mode(model):
        search = Search(rules, target_limits(model, max_len, source_ids), model.embed.weight.dtype)
        stepper = make_stepper(model, int8)
        logits = stepper.prefill([[rules.bos_id]] * len(source_ids), source_rows(source_ids, real))
        with decode_threads(stepper):
            while rows := search.advance(logits):
                if len(rows) > 1 or len(logits) > 1:  # a single row only ever continues itself
                    stepper.reorder(rows, search.log_prob.shape[1])
                logits = stepper.step(search.last_ids)
        return search.finished.hypotheses()


class Search:
    """Where all searches stand: one product of the model serves them all, each then weighs its own candidates."""

    def __init__(self, rules: BeamRules, limits: Tensor, dtype: torch.dtype):
        self.rules, self.finished = rules, Finished(rules, limits.tolist())
        self.going = list(self.finished.sentences)  # those that are still searched
        self.log_prob: Tensor = torch.zeros(
            len(limits), 1, dtype=dtype, device=limits.device
        )  # (sentences, live), best first
        self.last_ids = limits.new_full(
            (len(limits),), rules.bos_id
        )  # (sentences * live,): what is read next
        self.suppressed = limits.new_tensor(
            suppressed_ids(rules.bos_id, rules.eos_id, rules.pad_id)
        )

    def advance(self, logits: Tensor) -> list[int]:
        """One token further: the old row of each new row, sentence after sentence, each with equally many."""
        columns = (column.tolist() for column in self._candidates(logits))
        n_live, rows, stay = self.log_prob.shape[1], list[int](), list[Sentence]()
        for n, (sentence, *candidates) in enumerate(zip(self.going, *columns, strict=True)):
            sentence.advance(list(zip(*candidates, strict=True)))
            if not sentence.done:
                stay.append(sentence)
                rows += [n * n_live + parent for parent in sentence.parents]
        self.going = stay
        self.last_ids = self.last_ids.new_tensor(
            [ids[-1] for sentence in stay for ids in sentence.ids]
        )
        self.log_prob = self.log_prob.new_tensor([sentence.log_prob for sentence in stay])
        return rows

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1] The best 2 * size ways to add a token: the live one prolonged, the token, the sum of log-probabilities."""
        logits.index_fill_(1, self.suppressed, -math.inf)  # before the softmax, as in CTranslate2
        shift = self.log_prob - log_sum(logits).view_as(self.log_prob)
        return best_sums(logits, shift, 2 * self.rules.size)


class Sentence:
    """The search of one sentence; the numbers in brackets are the rules of textbook/beam.py."""

    def __init__(self, rules: BeamRules, limit: int):
        self.rules, self.limit, self.done = rules, limit, False
        self.ids: list[list[int]] = [[]]  # of the live ones, best first
        self.log_prob, self.parents = [0.0], [0]
        self.found: list[Hypothesis] = []  # those that are whole, best first

    def advance(self, candidates: list[tuple[int, int, float]]) -> None:
        """[2] Those that end are set aside, if they stand among the first `size`; the first that do not end live on."""
        size, eos = self.rules.size, self.rules.eos_id
        self._set_aside(
            [
                ([*self.ids[parent], eos], gain)
                for parent, token, gain in candidates[:size]
                if token == eos
            ]
        )
        live = [one for one in candidates if one[1] != eos][:size]
        live += [(parent, eos, -math.inf) for parent, token, _ in candidates if token == eos][
            : size - len(live)
        ]  # none left
        self.ids = [[*self.ids[parent], token] for parent, token, _ in live]
        self.log_prob, self.parents = (
            [gain for _, _, gain in live],
            [parent for parent, _, _ in live],
        )
        if len(self.ids[0]) == self.limit:  # [5]
            self._set_aside(list(zip(self.ids, self.log_prob, strict=True)))
            self.done = True
        self.done |= self._cannot_win(self.log_prob[0] / self.rules.penalty(self.limit))

    def _set_aside(self, whole: list[tuple[list[int], float]]) -> None:
        """[3] The best `size` of those there are and the new ones, of equals the earlier."""
        new = [
            Hypothesis(ids, gain, gain / self.rules.penalty(len(ids)))
            for ids, gain in whole
            if gain > -math.inf
        ]
        self.found = sorted(self.found + new, key=lambda one: -one.score)[: self.rules.size]

    def _cannot_win(self, hope: float) -> bool:
        """[4] Nothing alive can beat the worst that is found, or nothing is alive."""
        full = len(self.found) == self.rules.size
        return hope == -math.inf or (
            full and (self.rules.size == 1 or hope <= self.found[-1].score)
        )


class Finished:
    """The sentences in their order, and what was found for each."""

    def __init__(self, rules: BeamRules, limits: list[int]):
        self.sentences = [Sentence(rules, limit) for limit in limits]

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All sentences' translations, best first."""
        return [sentence.found for sentence in self.sentences]
