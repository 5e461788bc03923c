"""Batches for contrastive training: the groups of each step and the texts sampled from each group.

See docs/guides/embeddings.md.
"""

from functools import lru_cache

import numpy as np

from qkv.data.batches import batch_number
from qkv.data.random_numbers import mix_bits, random_stream

ORDER_STREAM, TEXT_STREAM = 0, 1  # independent random streams
GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64


class GroupPlan:
    """The batches of each step: a pure function of (seed, epoch, step, rank, world_size).

    Batches mix groups of all lengths: texts are in-batch negatives of each other, and equal
    lengths would make the negatives less varied. Each epoch drops a different remainder.

    Args:
        sizes: The number of texts of each group.
        batch_groups: The number of groups per batch.
        seed: Determines the order.
        texts_per_group: The number of texts to sample from each group.
    """

    def __init__(self, sizes: np.ndarray, batch_groups: int, seed: int, texts_per_group: int = 2):
        assert len(sizes) and sizes.min() >= 2 <= texts_per_group, "two texts per group or more"
        self.sizes, self.seed = np.asarray(sizes, np.int64), seed
        self.batch_groups, self.texts_per_group = min(batch_groups, len(sizes)), texts_per_group
        self._epoch = lru_cache(maxsize=1)(self._shuffle)

    def __len__(self) -> int:
        """The number of batches of every epoch."""
        return len(self.sizes) // self.batch_groups

    def batch(self, step: int, rank: int = 0, world_size: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the batch of one process at one step.

        Returns:
            The groups, (groups,), and the indices of the texts sampled from each,
            (groups, texts_per_group), -1 where a group has fewer texts.
        """
        epoch, index = divmod(batch_number(step, rank, world_size), len(self))
        order, draws = self._epoch(epoch)
        groups = order[index * self.batch_groups : (index + 1) * self.batch_groups]  # (groups,)
        return groups, self._sample_texts(self.sizes[groups], draws[groups])

    def _sample_texts(self, sizes: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Sample distinct text indices of each group, ascending: those with the lowest hashes."""
        index = np.arange(sizes.max())  # (largest,)
        numbers = draws[:, None] + index.astype(np.uint64)  # (groups, largest)
        keys = mix_bits(numbers * GOLDEN_GAMMA)
        keys[index >= sizes[:, None]] = np.iinfo(np.uint64).max
        sampled = np.argsort(keys, axis=1, kind="stable")[:, : self.texts_per_group]
        sampled[sampled >= sizes[:, None]] = len(index)  # beyond the group: sorted to the end
        sampled = np.sort(sampled, axis=1)
        return np.where(sampled < len(index), sampled, -1)  # (groups, texts_per_group)

    def _shuffle(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the order of the groups, and a draw for the texts of each; both (groups,)."""
        order, draws = (
            random_stream(self.seed, epoch, stream).random_raw(len(self.sizes))
            for stream in (ORDER_STREAM, TEXT_STREAM)
        )
        return np.argsort(order, kind="stable"), draws
