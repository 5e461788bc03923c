"""The contrastive loss: among all answers of a batch, each sentence should find its own.

In: vectors of length one, some for each meaning, perhaps hard negatives. Out: the summed loss of both directions; and the
way to encode a batch of any size in little memory. Told in docs/embedding.md, "Contrastive pairs" and "Large batches".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.data.batches import collate

ROWS = 1_024  # sentences compared with all others at a time
NEVER = -1e9  # the score of what is no wrong answer; finite, so that no gradient is lost where there is none at all


def contrastive_loss(vectors: Tensor, pairs: Tensor, meaning: Tensor, temperature: float) -> Tensor:
    """- log of the share that a sentence gives to its partner rather than to wrong answers; both ways, summed over pairs.

    `vectors` (sentences, d_model) have length one and `pairs` (n, 2) are places among them. All sentences of another
    `meaning` (sentences,) are wrong answers, on whichever side of a pair they stand:

        log(1 + sum_wrong exp(s_wrong - s_partner)),  s = cosine / temperature
    """
    pairs, meaning = pairs.to(vectors.device), meaning.to(vectors.device)
    blocks = torch.arange(len(vectors), device=vectors.device).split(ROWS)
    # The table of all with all is quadratic: that of a large batch is not kept for the gradient, but worked out again.
    again = torch.is_grad_enabled() and len(blocks) > 1
    wrong = torch.cat(
        [
            checkpoint(_wrong, rows, vectors, meaning, temperature, use_reentrant=False)
            if again
            else _wrong(rows, vectors, meaning, temperature)
            for rows in blocks
        ]
    )
    partner = (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(dim=1) / temperature  # (n,)
    return F.softplus(wrong[pairs] - partner[:, None]).sum() / 2


def _wrong(rows: Tensor, vectors: Tensor, meaning: Tensor, temperature: float) -> Tensor:
    """log sum exp of the scores of all wrong answers to these sentences, (rows,)."""
    scores = vectors[rows] @ vectors.T / temperature  # (rows, sentences)
    return scores.masked_fill(meaning[rows][:, None] == meaning, NEVER).logsumexp(dim=1)


@dataclass(frozen=True)
class Chunks:
    """Sentences sorted by length and cut into tensors that need little padding, whatever the batch; and the way back."""

    ids: tuple[Tensor, ...]  # each (rows, length)
    back: Tensor  # (sentences,): where each sentence stands among the sorted ones
    pad: int

    def vectors(
        self,
        encode: Callable[[Tensor, Tensor | None], Tensor],
        device: torch.device,
        recompute: bool,
    ) -> Tensor:
        """(sentences, d_model), in the order in which they were given.

        With `recompute` a chunk keeps its ids alone; what its gradient needs is worked out again when its turn comes,
        with the same dropout. So one chunk at a time is held, and the gradient is that of the whole batch.
        """
        parts = []
        for ids in self.ids:
            real = ids.ne(self.pad)
            given = ids.to(device), None if bool(real.all()) else real.to(device)
            again = recompute and torch.is_grad_enabled()
            parts.append(
                checkpoint(encode, *given, use_reentrant=False) if again else encode(*given)
            )
        return torch.cat(parts).index_select(0, self.back.to(device))


def cut_chunks(rows: Sequence[np.ndarray], size: int, pad: int) -> Chunks:
    """Chunks of `size` sentences, the shortest first."""
    order = np.argsort([len(row) for row in rows], kind="stable")  # (sentences,)
    starts = range(0, len(rows), size)
    ids = tuple(collate([rows[i] for i in order[start : start + size]], pad) for start in starts)
    return Chunks(ids, torch.from_numpy(np.argsort(order, kind="stable")), pad)


def meanings(sentences: Sequence[np.ndarray], groups: Sequence[int]) -> Tensor:
    """A number for each sentence, equal where the meaning is: those of one group, and of groups that share a text.

    >>> meanings([np.array(text) for text in ([1], [2], [3], [2], [4])], [0, 0, 1, 1, 2]).tolist()
    [0, 0, 0, 0, 2]
    """
    same = list(
        range(max(groups, default=-1) + 1)
    )  # each group points to one of the same meaning, or to itself
    found: dict[bytes, int] = {}
    for row, group in zip(sentences, groups, strict=True):
        other = _root(same, found.setdefault(np.asarray(row, np.int64).tobytes(), group))
        group = _root(same, group)
        same[max(group, other)] = min(group, other)
    return torch.tensor([_root(same, group) for group in groups])


def _root(same: list[int], group: int) -> int:
    while same[group] != group:
        group = same[group]
    return group
