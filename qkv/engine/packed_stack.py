"""An encoder or a decoder as few large operations: what comes before its layers, the layers, what comes after.

In: ids. Out: the stream, for all tokens of a row at once or for the newest ones; equal to the model's own (proven in
tests/engine/test_stepper.py). Told in docs/performance.md, "Decoding".
"""

import torch
from torch import Tensor

from qkv.engine.kv_cache import KeyValues
from qkv.engine.packed_convolution import FastConvolution
from qkv.engine.packed_layer import FastLayer
from qkv.engine.packed_weights import Make, Places, fast_norm, product
from qkv.model import spec as s
from qkv.model.block import Block, CrossBlock
from qkv.model.mixers import ConvolutionMixer
from qkv.model.transformer import LayerStack
from qkv.model.view import View, places_of


class FastStack:
    """An encoder or a decoder: its layers, and what comes before and after them."""

    def __init__(self, stack: LayerStack, spec: s.Stack, table: Tensor, scale: float, make: Make = product):
        norm, blocks = spec.layers[0].norm, [block for block in stack.layers if isinstance(block, Block | CrossBlock)]
        first = blocks[0]
        self.opening = FastConvolution(first, norm, make) if isinstance(first, Block) and isinstance(first.attn.branch, ConvolutionMixer) else None
        self.layers = [FastLayer(block, norm, make) for block in (blocks if self.opening is None else blocks[1:])]
        self.heads, self.table, self.scale = self.layers[0].heads, table, scale
        self.positions, self.sees = stack.positions, stack.sees
        self.places = Places(stack, self.heads.d_head, table)
        self.embed_norm, self.norm = fast_norm(stack.embed_norm, norm), fast_norm(stack.norm, norm)

    def read(self, ids: Tensor, real: Tensor | None, kv: KeyValues | None = None) -> Tensor:
        """All tokens of (rows, length) ids to the stream after the layers, (rows * length, d_model); fills the cache."""
        rows, length = ids.shape
        places = places_of(length, 0, real, ids.device)
        x = self.positions(torch.embedding(self.table, ids) * self.scale, places)
        x = self.embed_norm(x).flatten(0, 1)                                        # (rows * length, d_model)
        if self.opening is not None:
            store = self.opening.store(rows, length, self.table) if kv is None or kv.store is None else kv.store
            x = self.opening(x, store, 0, real)
        turn = self.positions.turn(places_of(length, 0, None, ids.device), x.dtype)  # only distances count: see step
        sight = View(length, 0, self.sees, real, device=ids.device).sight()
        for n, layer in enumerate(self.layers):
            x = layer.read(x, rows, turn, sight, None if kv is None else kv.all[:, n, :, :, :length])
        return x

    def normed(self, ids: Tensor, real: Tensor | None) -> Tensor:
        """What an encoder gives: (rows, length, d_model)."""
        return self.norm(self.read(ids, real)).view(*ids.shape, -1)

    def enter_all(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """(rows, length) tokens from the beginning: (rows * length, d_model), and a turn for each place, (length, d_head, d_head)."""
        added, turns = self.places.first(ids.shape[1])
        return self.embed_norm(torch.add(added, torch.embedding(self.table, ids), alpha=self.scale)).flatten(0, 1), turns

    def enter(self, ids: Tensor, place: int | Tensor, cells: KeyValues, cell: int) -> tuple[Tensor, Tensor | None]:
        """The newest token of each row, all at one place or each at its own: (rows, d_model), and the turn of queries and keys."""
        x = torch.embedding(self.table, ids)                                        # (rows, d_model)
        turn = self.places.turn(place if isinstance(place, int) else cell)          # padding counts: only distances turn
        if isinstance(place, int):
            x = torch.add(self.places.added(place), x, alpha=self.scale)
        else:
            x = self.positions((x * self.scale)[:, None], place[:, None])[:, 0]
        x = self.embed_norm(x)
        if self.opening is None:
            return x, turn
        assert cells.store is not None
        return self.opening(x, cells.store, cell), turn

    def enter_chain(self, ids: Tensor, place: int, cells: KeyValues) -> tuple[Tensor, Tensor | None]:
        """Tokens that follow each other, the first of them here: (tokens, d_model), and a turn for each."""
        entered = [self.enter(id, place + n, cells, cells.used + n) for n, id in enumerate(ids.split(1))]
        turns = [turn for _, turn in entered if turn is not None]
        return torch.cat([x for x, _ in entered]), torch.stack(turns) if turns else None

    def step(self, x: Tensor, turn: Tensor | None, cells: KeyValues, memory: KeyValues | None = None) -> Tensor:
        """What has entered, through all layers, (rows, d_model)."""
        seen = [None] * len(self.layers) if memory is None else memory.seen
        for layer, memory_seen, *cell in zip(self.layers, seen, *cells.next(len(x) // cells.all.shape[2]), strict=True):
            x = layer.step(x, cell, turn, memory_seen)
        return x
