"""Contrastive loss (InfoNCE) with in-batch negatives, and mini-batches for encoding large batches.

See docs/guides/embeddings.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qkv.data.batches import collate
from qkv.train.task import with_mask

BLOCK_ROWS = 1_024  # rows of the similarity matrix computed at a time
MASKED_SCORE = -1e9  # finite: with -inf, a row without negatives would have a NaN gradient


def contrastive_loss(vectors: Tensor, pairs: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """InfoNCE in both directions, summed over the positive pairs.

        log(1 + sum_negatives exp(s_negative - s_positive)),  s = cosine / temperature

    Args:
        vectors: Unit vectors, (sentences, d_model).
        pairs: Row numbers of the positive pairs, (n, 2).
        labels: A number per sentence, (sentences,); sentences with other labels are negatives.
        temperature: Lower is sharper.
    """
    pairs, labels = pairs.to(vectors.device), labels.to(vectors.device)
    blocks = torch.arange(len(vectors), device=vectors.device).split(BLOCK_ROWS)
    # The similarity matrix is quadratic: for a large batch it is recomputed in the backward pass.
    recomputed = torch.is_grad_enabled() and len(blocks) > 1
    compute = partial(checkpoint, _negatives, use_reentrant=False) if recomputed else _negatives
    negatives = torch.cat([compute(rows, vectors, labels, temperature) for rows in blocks])
    # negatives (sentences,)
    positives = (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(dim=1) / temperature  # (n,)
    return F.softplus(negatives[pairs] - positives[:, None]).sum() / 2


def _negatives(rows: Tensor, vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """logsumexp of the scores of all negatives of these sentences, (rows,)."""
    scores = vectors[rows] @ vectors.T / temperature  # (rows, sentences)
    return scores.masked_fill(labels[rows][:, None] == labels, MASKED_SCORE).logsumexp(dim=1)


@dataclass(frozen=True)
class MiniBatches:
    """Sentences sorted by length, in padded tensors of `mini_batch_size` rows."""

    ids: tuple[Tensor, ...]  # each (rows, length)
    inverse_order: Tensor  # (sentences,): the row of each sentence among the sorted ones
    pad: int

    def vectors(
        self,
        encode: Callable[[Tensor, Tensor | None], Tensor],
        device: torch.device,
        gradient_checkpointing: bool,
    ) -> Tensor:
        """Encode all sentences: (sentences, d_model), in the original order.

        With gradient checkpointing a mini-batch keeps only its ids, and its activations are
        recomputed in the backward pass, with the same dropout: the memory is that of one
        mini-batch, the gradient that of the whole batch.
        """
        if gradient_checkpointing and torch.is_grad_enabled():
            encode = partial(checkpoint, encode, use_reentrant=False)
        parts = [encode(*with_mask(ids, self.pad, device)) for ids in self.ids]
        return torch.cat(parts).index_select(0, self.inverse_order.to(device))


def mini_batches(rows: Sequence[np.ndarray], size: int, pad: int) -> MiniBatches:
    """Mini-batches of `size` sentences, the shortest first."""
    order = np.argsort([len(row) for row in rows], kind="stable")  # (sentences,)
    starts = range(0, len(rows), size)
    ids = tuple(collate([rows[i] for i in order[start : start + size]], pad) for start in starts)
    return MiniBatches(ids, torch.from_numpy(np.argsort(order, kind="stable")), pad)


def group_labels(sentences: Sequence[np.ndarray], groups: Sequence[int]) -> Tensor:
    """A label per sentence: equal within a group, and for groups that share a text.

    >>> texts = [np.array(ids) for ids in ([1], [2], [3], [2], [4])]
    >>> group_labels(texts, [0, 0, 1, 1, 2]).tolist()
    [0, 0, 0, 0, 2]
    """
    parents = list(range(max(groups, default=-1) + 1))  # union-find
    first_group: dict[bytes, int] = {}
    for row, group in zip(sentences, groups, strict=True):
        text = np.asarray(row, np.int64).tobytes()
        other = _root(parents, first_group.setdefault(text, group))
        group = _root(parents, group)
        parents[max(group, other)] = min(group, other)
    return torch.tensor([_root(parents, group) for group in groups])


def _root(parents: list[int], group: int) -> int:
    while parents[group] != group:
        group = parents[group]
    return group
