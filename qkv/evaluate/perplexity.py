"""Perplexity of a translator: exp of the mean negative log-likelihood per target token.

<eos> counts as a token. See docs/guides/translation.md.
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
    pairs = [
        (target, source)
        for source, target in zip(sources, targets, strict=True)
        if len(source) <= limits[0] and len(target) - 1 <= limits[1]
    ]
    pairs.sort(key=lambda pair: tuple(map(len, pair)))
    nats = 0.0
    with eval_mode(model):
        for batch in _batches([len(target) + len(source) for target, source in pairs]):
            nats += _nats(model, *zip(*pairs[batch], strict=True))
    return Perplexity(nats, sum(len(pair[0]) - 1 for pair in pairs), len(targets) - len(pairs))


def _nats(model: Transformer, targets: Sequence[Ids], sources: Sequence[Ids]) -> float:
    device = model.embed.weight.device
    source, source_mask = _padded(sources, device)
    target, target_mask = _padded(targets, device)
    memory = model.encode(source, None if bool(source_mask.all()) else source_mask)
    # Padding is on the right, so the causal mask already excludes it.
    states = model.decode(target[:, :-1], memory)
    return float(model.loss(states, target[:, 1:], target_mask[:, 1:]))


def _padded(rows: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (batch, length), padded on the right with 0, and their attention mask."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths).to(device)


def _batches(costs: list[int]) -> list[slice]:
    """Slices of consecutive rows of at most BATCH_TOKENS tokens, padding included."""
    batches, start = [], 0
    for end in range(1, len(costs) + 1):
        if end == len(costs) or (end + 1 - start) * max(costs[start : end + 1]) > BATCH_TOKENS:
            batches.append(slice(start, end))
            start = end
    return batches
