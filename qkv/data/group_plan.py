"""Which groups make a batch, and which sentences speak for each.

In: the sizes of all groups, how many make a batch, a seed. Out: the rows of any step's batch and the chosen sentences.
Told in docs/embedding.md, "Contrastive pairs".
"""

import numpy as np

ROWS, PLACES = 0, 1  # two streams of draws, one for each question


class GroupPlan:
    """The order of contrastive training: a pure function of (seed, epoch, step, rank, world).

    Batches are drawn from all groups, whatever their length: each sentence of a batch is a wrong answer to the others,
    and sentences of one length would make them a less varied lot. Each epoch leaves out another remainder.
    """

    def __init__(self, sizes: np.ndarray, batch: int, seed: int, views: int = 2):
        assert len(sizes) and sizes.min() >= 2 <= views, "a group has two sentences or more"
        self.sizes, self.size, self.seed, self.views = (
            np.asarray(sizes, np.int64),
            min(batch, len(sizes)),
            seed,
            views,
        )
        self._drawn: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        """The number of batches of every epoch."""
        return len(self.sizes) // self.size

    def batch(self, step: int, rank: int = 0, world: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """The groups of one process at one step, (batch,), and the places chosen in each, (batch, views), -1: no more."""
        assert 0 <= rank < world and step >= 0
        epoch, turn = divmod(step * world + rank, len(self))
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = (
                epoch,
                np.argsort(self._raw(epoch, ROWS), kind="stable"),
                self._raw(epoch, PLACES),
            )
        _, order, draws = self._drawn
        rows = order[turn * self.size : (turn + 1) * self.size]  # (batch,)
        return rows, self._places(self.sizes[rows], draws[rows])

    def _places(self, sizes: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """So many different places of each group, the earlier first: the places whose numbers come out lowest."""
        place = np.arange(sizes.max())  # (largest,)
        luck = _mixed(draws[:, None] + place.astype(np.uint64))  # (batch, largest)
        luck[place >= sizes[:, None]] = np.iinfo(np.uint64).max
        chosen = np.argsort(luck, axis=1, kind="stable")[:, : self.views]
        chosen[chosen >= sizes[:, None]] = len(place)  # beyond the group: to the end
        chosen = np.sort(chosen, axis=1)
        return np.where(chosen < len(place), chosen, -1)  # (batch, views)

    def _raw(self, epoch: int, question: int) -> np.ndarray:
        """Raw draws only: numpy promises that these stay the same in every version, unlike its shuffles."""
        return np.random.Philox(np.random.SeedSequence([self.seed, epoch, question])).random_raw(
            len(self.sizes)
        )


def _mixed(x: np.ndarray) -> np.ndarray:
    """Neighbouring numbers to unrelated ones, by multiplying and folding (splitmix64), modulo 2^64."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
