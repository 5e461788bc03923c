"""The contrastive loss: among all answers of a batch, each sentence should find its own.

In: vectors of length one, two for each meaning, perhaps hard negatives. Out: the summed loss of both directions; and the
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


def contrastive_loss(a: Tensor, b: Tensor, temperature: float, alike: Tensor, odd: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """- log of the share that a_i gives to b_i among all b, and b_i to a_i among all a; the mean of both, summed over i.

    `alike` (pairs, pairs) is True where j means what i means: such a j is no wrong answer. `odd` are hard negatives
    (n, d_model), more wrong answers to every a, and where they are none (pairs, n).
    """
    own = torch.arange(len(a), device=a.device)
    scores = a @ b.T / temperature                                              # (pairs, pairs)
    others = alike & ~torch.eye(len(a), dtype=torch.bool, device=a.device)
    scores = scores.masked_fill(others, -torch.inf)
    forth = scores
    if odd is not None:
        more = (a @ odd[0].T / temperature).masked_fill(odd[1], -torch.inf)     # (pairs, n)
        forth = torch.cat([scores, more], dim=1)
    there, back = (F.cross_entropy(one, own, reduction="sum") for one in (forth, scores.T))
    return (there + back) / 2


@dataclass(frozen=True)
class Chunks:
    """Sentences sorted by length and cut into tensors that need little padding, whatever the batch; and the way back."""

    ids: tuple[Tensor, ...]  # each (rows, length)
    back: Tensor             # (sentences,): where each sentence stands among the sorted ones
    pad: int

    def vectors(self, encode: Callable[[Tensor, Tensor | None], Tensor], device: torch.device, recompute: bool) -> Tensor:
        """(sentences, d_model), in the order in which they were given.

        With `recompute` a chunk keeps its ids alone; what its gradient needs is worked out again when its turn comes,
        with the same dropout. So one chunk at a time is held, and the gradient is that of the whole batch.
        """
        parts = []
        for ids in self.ids:
            real = ids.ne(self.pad)
            given = ids.to(device), None if bool(real.all()) else real.to(device)
            again = recompute and torch.is_grad_enabled()
            parts.append(checkpoint(encode, *given, use_reentrant=False) if again else encode(*given))
        return torch.cat(parts).index_select(0, self.back.to(device))


def cut_chunks(rows: Sequence[np.ndarray], size: int, pad: int) -> Chunks:
    """Chunks of `size` sentences, the shortest first."""
    order = np.argsort([len(row) for row in rows], kind="stable")               # (sentences,)
    starts = range(0, len(rows), size)
    ids = tuple(collate([rows[i] for i in order[start : start + size]], pad) for start in starts)
    return Chunks(ids, torch.from_numpy(np.argsort(order, kind="stable")), pad)


def alike_groups(sentences: Sequence[np.ndarray], seats: np.ndarray, odd: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Which groups share a text and so mean the same, (groups, groups); and which hold an odd one, (groups, odd).

    `seats` (groups, views) are places in `sentences`, -1 where a group has no more.
    """
    number: dict[bytes, int] = {}
    texts, odds = (np.array([number.setdefault(_key(row), len(number)) for row in rows], np.int64) for rows in (sentences, odd))
    repeated = np.flatnonzero(np.bincount(np.concatenate([texts, odds])) > 1)   # few, so that large batches cost little
    column = np.full(len(number), -1)
    column[repeated] = np.arange(len(repeated))
    held = np.zeros((len(seats), len(repeated) + 1), np.float32)                # the last column: all that stand once
    groups, views = (seats >= 0).nonzero()
    held[groups, column[texts[seats[groups, views]]]] = 1
    held[:, -1] = 0
    alike = (held @ held.T > 0) | np.eye(len(seats), dtype=bool)
    return torch.from_numpy(alike), torch.from_numpy(held[:, column[odds]] > 0)


def _key(row: np.ndarray) -> bytes:
    return np.asarray(row, np.int64).tobytes()
