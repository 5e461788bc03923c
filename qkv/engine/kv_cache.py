"""The cache of a fast step: keys and values of all layers in one buffer, written in place and never reordered.

In: new keys and values. Out: for each layer all that its queries may look at. Beams do not copy their past: all beams of
a sentence look at one store, and what is not a beam's own past is hidden. Told in docs/performance.md, "Decoding".
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

VECTOR = 16  # numbers the processor takes at once: softmax over 11 places costs several times that over 16


class Seen(NamedTuple):
    """What one layer's queries look at; cells come in whole vectors, those that are none are hidden."""

    keys: Tensor    # (sentences * kv_heads, d_head, cells)
    values: Tensor  # (sentences * kv_heads, cells, d_head)
    hidden: Tensor  # (sentences or 1, 1, beams or 1, 1, cells): 0, or -inf where nothing may be seen


class KeyValues:
    """`all` is (2, layers, sentences, kv_heads, room, d_head), `hidden` (sentences or 1, beams or 1, room).

    `store` is what a convolution before the layers reads, (sentences, more than room, d_model), if there is one.
    """

    def __init__(self, all_: Tensor, hidden: Tensor, used: int = 0):
        self.all, self.hidden, self.used = all_, hidden, used
        self.store: Tensor | None = None
        self.seen: list[Seen] = []
        self.handed: tuple[Tensor, Tensor, Any] | None = None  # how the native library is told of these tensors

    @staticmethod
    def empty(shape: Sequence[int], like: Tensor) -> "KeyValues":
        """Room for the first cells; zeros, because what is hidden is still multiplied."""
        return KeyValues(like.new_zeros(2, *shape), like.new_full((1, 1, shape[3]), -math.inf))

    def next(self, beams: int) -> tuple[Sequence[Tensor], Sequence[Tensor], list[Seen]]:
        """For each layer where the new keys go, (sentences, kv_heads, beams, d_head), where the values, and all there is."""
        first = self.used
        self.take(beams)
        if not self.seen or self.used > self.seen[0].keys.shape[2]:
            self.look(whole(self.used))
        new_keys, new_values = self.all.narrow(4, first, beams)
        return new_keys.unbind(0), new_values.unbind(0), self.seen

    def take(self, beams: int) -> None:
        """A new cell for each beam, the last ones of those in use; each beam sees its own."""
        self.reserve(beams)
        self.hidden.narrow(2, self.used, beams).diagonal(0, 1, 2).zero_()
        self.used += beams

    def reserve(self, cells: int) -> None:
        """Room for so many more."""
        while self.used + cells > self.all.shape[4]:
            self.all = torch.cat([self.all, torch.zeros_like(self.all)], dim=4)
            self.hidden = torch.cat([self.hidden, torch.full_like(self.hidden, -math.inf)], dim=2)
            self.store = None if self.store is None else torch.cat([self.store, torch.zeros_like(self.store)], dim=1)
            self.seen = []

    def chain(self, length: int) -> "KeyValues":
        """The same store for the next tokens of one row as its beams: each sees what the row has seen and those before it."""
        self.reserve(length)
        hidden = self.hidden.repeat(1, length, 1)                                    # (1, length, room)
        hidden[..., self.used :] = -math.inf
        hidden[0, :, self.used : self.used + length].triu_(1)
        return KeyValues(self.all, hidden, self.used)

    def look(self, cells: int) -> None:
        """What each layer sees of the first cells, as views."""
        keys, values = self.all.narrow(4, 0, cells).flatten(2, 3)                    # (layers, sentences * kv_heads, cells, d)
        hidden = self.hidden.narrow(2, 0, cells)[:, None, :, None]
        self.seen = [Seen(k.transpose(1, 2), v, hidden) for k, v in zip(keys, values, strict=True)]

    def keep(self, sentences: Tensor) -> None:
        """These sentences stay, in this order; one may come twice."""
        cells = self.seen[0].keys.shape[2] if self.seen else whole(self.used)
        self.all = self.all.index_select(2, sentences)
        self.store = None if self.store is None else self.store.index_select(0, sentences)
        if len(self.hidden) > 1:
            self.hidden = self.hidden.index_select(0, sentences)
        self.look(cells)

    def follow(self, parents: Tensor) -> None:
        """Beam i of a sentence goes on from its old beam parents[sentence, i]."""
        hidden = self.hidden.expand(len(parents), -1, -1)
        self.hidden, self.seen = hidden.gather(1, parents[..., None].expand(-1, -1, hidden.shape[2])), []


def whole(cells: int) -> int:
    """The next multiple of VECTOR."""
    return -(-cells // VECTOR) * VECTOR
