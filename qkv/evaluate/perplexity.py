"""How surprised a translator is by the right translations.

In: pairs of ids. Out: the mean surprise per target token, <eos> included, and its exponential, the perplexity: among how
many equally likely tokens the model wavers. Told in docs/translation.md, "Scores".
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
class Surprise:
    """The summed surprise in nats over so many tokens."""

    nats: float
    tokens: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.tokens if self.tokens else math.nan

    @property
    def value(self) -> float:
        """The perplexity: among how many equally likely tokens the model wavers."""
        return math.exp(min(self.nats_per_token, 700.0))  # beyond, a float cannot hold it


@dataclass(frozen=True)
class Perplexity(Surprise):
    """Of target tokens; pairs longer than the model can count are left out."""

    left_out: int = 0


def translation_perplexity(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids]
) -> Perplexity:
    """`sources` end in <eos>; `targets` begin with <bos> and end in <eos>, and each token but the first is guessed."""
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
    (source, here), (target, said) = _side_by_side(sources, device), _side_by_side(targets, device)
    memory = model.encode(source, None if bool(here.all()) else here)
    stream = model.decode(
        target[:, :-1], memory
    )  # padding stands on the right: the causal mask hides it already
    return float(model.loss(stream, target[:, 1:], said[:, 1:]))


def _side_by_side(rows: list[Ids], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids (batch, length), padded on the right with 0, and which of them are real."""
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths).to(device)


def _batches(costs: list[int]) -> list[range]:
    """Neighbours together, within the budget of tokens."""
    batches, start = [], 0
    for end in range(1, len(costs) + 1):
        if end == len(costs) or (end + 1 - start) * max(costs[start : end + 1]) > BATCH_TOKENS:
            batches.append(range(start, end))
            start = end
    return batches
