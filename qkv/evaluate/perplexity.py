"""Perplexity of a translator: exp of the mean negative log-likelihood per target token.

<eos> counts as a token. See docs/translation.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer

BATCH_TOKENS = 4_096  # source and target together, padding included

Ids = Sequence[int]


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """The negative log-likelihood of a text in nats, summed over its tokens."""

    nats: float
    tokens: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def value(self) -> float:
        """The perplexity: exp(nats per token)."""
        return math.exp(min(self.nats_per_token, 700.0))  # exp(710) overflows a float


@dataclass(frozen=True)
class Perplexity(NegativeLogLikelihood):
    """Perplexity of target tokens; pairs longer than the model's context are skipped."""

    skipped: int = 0


def translation_perplexity(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids]
) -> Perplexity:
    """Perplexity of the targets given the sources (teacher forcing).

    Args:
        model: An encoder-decoder model.
        sources: Ids of the source sentences, each ending in <eos>.
        targets: Ids of the translations, each `<bos> ... <eos>`; all but <bos> are predicted.
    """
    assert model.encoder is not None and model.decoder is not None and len(sources) == len(targets)
    limits = model.encoder.limit or math.inf, model.decoder.limit or math.inf
    fits = [
        n
        for n, (source, target) in enumerate(zip(sources, targets, strict=True))
        if len(source) <= limits[0] and len(target) - 1 <= limits[1]
    ]
    fits.sort(key=lambda n: (len(targets[n]), len(sources[n])))
    nats = 0.0
    with eval_mode(model):
        for rows in _batches([len(sources[n]) + len(targets[n]) for n in fits]):
            chosen = [fits[row] for row in rows]
            nats += _nats(model, [sources[n] for n in chosen], [targets[n] for n in chosen])
    return Perplexity(nats, sum(len(targets[n]) - 1 for n in fits), len(targets) - len(fits))


def _nats(model: Transformer, sources: list[Ids], targets: list[Ids]) -> float:
    device = model.embed.weight.device
    source, source_mask = _padded(sources, device)
    target, target_mask = _padded(targets, device)
    memory = model.encode(source, None if bool(source_mask.all()) else source_mask)
    # Padding is on the right, so the causal mask already excludes it.
    states = model.decode(target[:, :-1], memory)
    return float(model.loss(states, target[:, 1:], target_mask[:, 1:]))


def _padded(rows: list[Ids], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (batch, length), padded on the right with 0, and their attention mask."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths).to(device)


def _batches(costs: list[int]) -> list[range]:
    """Ranges of consecutive rows of at most BATCH_TOKENS tokens, padding included."""
    batches, start = [], 0
    for end in range(1, len(costs) + 1):
        if end == len(costs) or (end + 1 - start) * max(costs[start : end + 1]) > BATCH_TOKENS:
            batches.append(range(start, end))
            start = end
    return batches
