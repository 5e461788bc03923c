"""A model on the examination table: a copy that cannot be harmed, random sentences for it, and how to compare passes.

In: a model. Out: its copy in float64 (float32 where it is large), sentences of different lengths, differences.
Told in docs/check.md, "How it is proved".
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from qkv.model.transformer import Memory, Transformer
from qkv.text.tokenizer import Tokenizer

SMALL = 50_000_000  # parameters up to which a copy in float64 is cheap
Reload = Callable[
    [Transformer, Mapping[str, Tokenizer]], tuple[Transformer, Mapping[str, Tokenizer]]
]


@dataclass
class Sentences:
    """A batch of texts: ids and which of them are real (None: all), for each side a model has."""

    ids: Tensor  # (batch, length)
    real: Tensor | None = None
    source: Tensor | None = None  # (batch, source), only where an encoder serves a decoder
    source_real: Tensor | None = None

    def keep(self, rows: Tensor) -> "Sentences":
        return Sentences(*(None if one is None else one[rows] for one in vars(self).values()))  # type: ignore[arg-type]


@dataclass
class Subject:
    """What the checks ask: the model as it is, its copy to run, and what came with it."""

    original: Transformer
    tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)
    reload: Reload | None = None  # saves a model and loads it again

    @cached_property
    def model(self) -> Transformer:
        """The copy that is run: in float64, or float32 where that would be too much; a large float32 one shares memory."""
        is_small = sum(weight.numel() for weight in self.original.parameters()) < SMALL
        dtype = torch.float64 if is_small else torch.float32
        shares = dtype == self.original.embed.weight.dtype
        tensors = (*self.original.parameters(), *self.original.buffers()) if shares else ()
        # What a training pass left on a module (the balance of experts) has a history, which cannot be copied.
        left = [
            one
            for part in self.original.modules()
            for one in vars(part).values()
            if isinstance(one, Tensor)
        ]
        memo = {id(one): one for one in tensors} | {id(one): one.detach() for one in left}
        twin = copy.deepcopy(self.original, memo)
        return (twin if shares else twin.to(dtype)).eval()

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed.weight.dtype

    @property
    def tolerance(self) -> float:
        """The greatest difference, as a share of the greatest number, that rounding explains."""
        return 1e-10 if self.dtype == torch.float64 else 5e-4

    @cached_property
    def limit(self) -> int:
        """How long a text may be; 70 tokens are enough to make a cache grow twice."""
        stacks = (self.model.encoder, self.model.decoder)
        return min(
            [
                70,
                *(stack.limit for stack in stacks if stack is not None and stack.limit is not None),
            ]
        )

    @property
    def room(self) -> int:
        """How many tokens of padding the longest row gets."""
        return min(2, self.limit - 1)

    def sentences(self, batch: int, length: int) -> Sentences:
        """Random texts without padding, room for it left; the same ones each time."""
        chance, spec = torch.Generator().manual_seed(batch * 1_000 + length), self.model.spec
        ids = torch.randint(0, spec.vocab_size, (batch, length), generator=chance)
        last, longest = spec.source_vocab_size or spec.vocab_size, min(9, self.limit - self.room)
        source = torch.randint(0, last, (batch, longest), generator=chance)
        two_sides = spec.encoder is not None and spec.decoder is not None
        return Sentences(ids.to(self.device), None, source.to(self.device) if two_sides else None)

    def padded(self, texts: Sentences, side: str, filler: int) -> Sentences:
        """Row i is cut down by i tokens, then all are padded on one side to more than the longest; in both stacks."""
        ids, real = pad_rows(texts.ids, side, self.room, filler)
        if texts.source is None:
            return Sentences(ids, real)
        return Sentences(ids, real, *pad_rows(texts.source, side, self.room, filler))

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device


def memory_of(model: Transformer, texts: Sentences) -> Memory | None:
    return None if texts.source is None else model.encode(texts.source, texts.source_real)


def stream(model: Transformer, texts: Sentences) -> Tensor:
    """The last vectors of whatever stack a model ends in, (batch, length, d_model)."""
    if model.decoder is None:
        return model.encode(texts.ids, texts.real).states
    return model.decode(texts.ids, memory_of(model, texts), real=texts.real)


def pad_rows(ids: Tensor, side: str, extra: int, filler: int) -> tuple[Tensor, Tensor]:
    batch, length = ids.shape
    lengths = (length - torch.arange(batch, device=ids.device)).clamp(min=1)[:, None]  # (batch, 1)
    place = torch.arange(length + extra, device=ids.device)[None]  # (1, length + extra)
    start = torch.zeros_like(lengths) if side == "right" else length + extra - lengths
    real = (place >= start) & (place < start + lengths)  # (batch, length + extra)
    own = ids.gather(1, (place - start).clamp(0, length - 1).expand(batch, -1))
    return own.where(real, torch.full_like(own, filler)), real


def row_alone(texts: Sentences, row: int) -> Sentences:
    """One text of a padded batch, its padding taken away."""

    def bare(ids: Tensor | None, real: Tensor | None) -> Tensor | None:
        return (
            None if ids is None else ids[row][None] if real is None else ids[row][real[row]][None]
        )

    ids = bare(texts.ids, texts.real)
    assert ids is not None
    return Sentences(ids, None, bare(texts.source, texts.source_real))


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The greatest difference as a share of the greatest number; NaN if there is one."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30))
