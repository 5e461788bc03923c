"""Beam search for a batch of sentences, with the rules of textbook/beam.py.

See docs/explanation/decoding.md, "Beam search".
"""

import math
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor

from qkv.engine.stepper import make_stepper
from qkv.generate.backend import Hypothesis
from qkv.kernels.topk import log_sum_exp, topk_candidates
from qkv.model.transformer import Transformer


@dataclass(frozen=True)
class BeamSearchConfig:
    """Special token ids, beam size, and alpha of the length penalty ((5 + length) / 6)^alpha."""

    bos_id: int
    eos_id: int
    pad_id: int
    size: int = 4
    alpha: float = 0.6

    def penalty(self, length: int) -> float:
        return ((5 + length) / 6) ** self.alpha

    @property
    def suppressed_ids(self) -> list[int]:
        """<bos> and <pad> are never generated, unless the vocabulary uses one of them as <eos>."""
        return sorted({self.bos_id, self.pad_id} - {self.eos_id})


def beam_search(
    model: Transformer,
    sources: list[list[int]],
    config: BeamSearchConfig,
    limits: list[int],
    int8: bool = False,
) -> list[list[Hypothesis]]:
    """Return at most `config.size` translations of each sentence, best first.

    Args:
        model: An encoder-decoder.
        sources: The ids of each sentence, with <eos>.
        config: Special tokens, beam size and length penalty.
        limits: Maximum target tokens of each sentence, <eos> included.
        int8: Use int8-quantized weights.
    """
    stepper = make_stepper(model, int8)
    with stepper.decoding():
        search = BeamSearch(config, limits, model.embed.weight)
        logits = stepper.prefill([[config.bos_id]] * len(sources), sources)
        while rows := search.advance(logits):
            if len(rows) > 1 or len(logits) > 1:  # a single row only continues itself
                stepper.reorder(rows, search.log_prob.shape[1])
            logits = stepper.step(search.last_ids)
        return [sentence.finished for sentence in search.sentences]


class BeamSearch:
    """Beam search state of a batch; one decode step serves all sentences."""

    def __init__(self, config: BeamSearchConfig, limits: list[int], like: Tensor):
        self.config = config
        self.sentences = [SentenceBeam(config, limit) for limit in limits]
        self.active = list(self.sentences)  # sentences that are not done
        # (active sentences, live hypotheses), best first
        self.log_prob = like.new_zeros(len(limits), 1)
        # (active sentences * live hypotheses,): the input of the next decode step
        self.last_ids = torch.full((len(limits),), config.bos_id, device=like.device)
        self.suppressed = torch.tensor(config.suppressed_ids, dtype=torch.long, device=like.device)

    def advance(self, logits: Tensor) -> list[int]:
        """Add one token; return the parent row of each new row, the same number per sentence."""
        columns = [column.tolist() for column in self._candidates(logits)]
        n_live, rows, active = self.log_prob.shape[1], list[int](), list[SentenceBeam]()
        for index, (sentence, *candidates) in enumerate(zip(self.active, *columns, strict=True)):
            sentence.advance(list(zip(*candidates, strict=True)))
            if not sentence.done:
                active.append(sentence)
                rows += [index * n_live + parent for parent in sentence.parents]
        self.active = active
        last_ids = [ids[-1] for sentence in active for ids in sentence.ids]
        self.last_ids = self.last_ids.new_tensor(last_ids)
        self.log_prob = self.log_prob.new_tensor([sentence.log_prob for sentence in active])
        return rows

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1] The best 2 * size extensions: live hypothesis, token, sum of log-probabilities."""
        logits.index_fill_(1, self.suppressed, -math.inf)  # before the softmax, as in CTranslate2
        shift = self.log_prob - log_sum_exp(logits).view_as(self.log_prob)
        return topk_candidates(logits, shift, 2 * self.config.size)


class SentenceBeam:
    """The beam of one sentence; numbers in brackets refer to the rules of textbook/beam.py."""

    def __init__(self, config: BeamSearchConfig, limit: int):
        self.config, self.limit, self.done = config, limit, False
        self.ids: list[list[int]] = [[]]  # of the live hypotheses, best first
        self.log_prob, self.parents = [0.0], [0]
        self.finished: list[Hypothesis] = []  # best first

    def advance(self, candidates: list[tuple[int, int, float]]) -> None:
        """[2] Candidates ending in <eos> among the first `size` finish; the best others live."""
        size, eos = self.config.size, self.config.eos_id
        ended = [
            ([*self.ids[parent], eos], log_prob)
            for parent, token, log_prob in candidates[:size]
            if token == eos
        ]
        self._add_finished(ended)
        live = [candidate for candidate in candidates if candidate[1] != eos][:size]
        # Fewer than `size` remain in a tiny vocabulary: fill the beam with impossible hypotheses.
        filler = [(parent, eos, -math.inf) for parent, token, _ in candidates if token == eos]
        live += filler[: size - len(live)]
        self.ids = [[*self.ids[parent], token] for parent, token, _ in live]
        self.log_prob = [log_prob for _, _, log_prob in live]
        self.parents = [parent for parent, _, _ in live]
        if len(self.ids[0]) == self.limit:  # [5]
            self._add_finished(list(zip(self.ids, self.log_prob, strict=True)))
            self.done = True
        self.done |= self._cannot_improve(self.log_prob[0] / self.config.penalty(self.limit))

    def _add_finished(self, hypotheses: list[tuple[list[int], float]]) -> None:
        """[3] Keep the best `size` finished hypotheses; of equal scores the earlier."""
        new = [
            Hypothesis(ids, log_prob, log_prob / self.config.penalty(len(ids)))
            for ids, log_prob in hypotheses
            if log_prob > -math.inf
        ]
        ranked = sorted(self.finished + new, key=attrgetter("score"), reverse=True)
        self.finished = ranked[: self.config.size]

    def _cannot_improve(self, best_possible: float) -> bool:
        """[4] No live hypothesis can beat the worst finished one, or none is live."""
        full = len(self.finished) == self.config.size
        return best_possible == -math.inf or (
            full and (self.config.size == 1 or best_possible <= self.finished[-1].score)
        )
