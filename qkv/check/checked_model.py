"""The model under check: a float64 copy, random batches, and comparisons.

See docs/guides/inspect.md.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from qkv.model.transformer import Memory, Transformer
from qkv.text.tokenizer import Tokenizer

__all__ = ["CheckedModel"]

MAX_FLOAT64_PARAMETERS = 50_000_000  # larger models are copied in float32
Tokenizers = Mapping[str, Tokenizer]  # by name: "tokenizer", or "source" and "target"
Reload = Callable[[Transformer, Tokenizers], tuple[Transformer, Tokenizers]]


@dataclass
class TokenBatch:
    """Ids and attention masks (None: no padding) of a batch, and of its encoder input."""

    ids: Tensor  # (batch, length)
    attention_mask: Tensor | None = None  # (batch, length), True = token
    source: Tensor | None = None  # (batch, source), encoder-decoder models only
    source_attention_mask: Tensor | None = None

    def reorder(self, rows: Tensor) -> "TokenBatch":
        """Select rows of the batch; a row may be repeated."""
        tensors = vars(self).values()
        return TokenBatch(*(None if tensor is None else tensor[rows] for tensor in tensors))  # type: ignore[arg-type]


@dataclass
class CheckedModel:
    """A model, its tokenizers, and the copy that the checks run."""

    original: Transformer
    tokenizers: Tokenizers = field(default_factory=dict)
    reload: Reload | None = None  # saves a model and loads it again

    @cached_property
    def model(self) -> Transformer:
        """A copy in eval mode: float64, or float32 above MAX_FLOAT64_PARAMETERS.

        A large float32 model shares its weights with the copy.
        """
        dtype = torch.float64 if self.n_parameters < MAX_FLOAT64_PARAMETERS else torch.float32
        shares = dtype == self.original.embed.weight.dtype
        shared = (*self.original.parameters(), *self.original.buffers()) if shares else ()
        memo = {id(tensor): tensor for tensor in shared}
        # A tensor that a training pass left on a module (the router's auxiliary loss) is not a leaf
        # of the autograd graph, and deepcopy refuses such tensors.
        memo |= {
            id(value): value.detach()
            for module in self.original.modules()
            for value in vars(module).values()
            if isinstance(value, Tensor)
        }
        model = copy.deepcopy(self.original, memo)
        return (model if shares else model.to(dtype)).eval()

    @property
    def n_parameters(self) -> int:
        return sum(weight.numel() for weight in self.original.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.embed.weight.device

    @property
    def tolerance(self) -> float:
        """The largest relative difference that rounding explains."""
        return 1e-10 if self.dtype == torch.float64 else 5e-4

    @cached_property
    def max_length(self) -> int:
        """Length of the longest test sequence; 70 tokens make a growing cache reallocate twice."""
        stacks = filter(None, (self.model.encoder, self.model.decoder))
        return min(70, *(stack.limit or 70 for stack in stacks))

    @property
    def extra_padding(self) -> int:
        """Padding tokens of the longest row of a padded batch."""
        return min(2, self.max_length - 1)

    def random_batch(self, batch: int, length: int) -> TokenBatch:
        """Random ids without padding; equal arguments give equal ids."""
        generator, spec = torch.Generator().manual_seed(batch * 1_000 + length), self.model.spec
        ids = torch.randint(0, spec.vocab_size, (batch, length), generator=generator)
        source_vocab_size = spec.source_vocab_size or spec.vocab_size
        source_length = min(9, self.max_length - self.extra_padding)
        source = torch.randint(0, source_vocab_size, (batch, source_length), generator=generator)
        has_source = spec.encoder and spec.decoder
        return TokenBatch(ids.to(self.device), None, source.to(self.device) if has_source else None)

    def padded(self, batch: TokenBatch, side: str, pad_id: int) -> TokenBatch:
        """Shorten row i by i tokens and pad all rows on one side; the source likewise."""
        ids, attention_mask = pad_rows(batch.ids, side, self.extra_padding, pad_id)
        if batch.source is None:
            return TokenBatch(ids, attention_mask)
        source = pad_rows(batch.source, side, self.extra_padding, pad_id)
        return TokenBatch(ids, attention_mask, *source)


def encode_source(model: Transformer, batch: TokenBatch) -> Memory | None:
    return None if batch.source is None else model.encode(batch.source, batch.source_attention_mask)


def final_states(model: Transformer, batch: TokenBatch) -> Tensor:
    """Hidden states after the last stack, (batch, length, d_model)."""
    if model.decoder is None:
        return model.encode(batch.ids, batch.attention_mask).states
    memory = encode_source(model, batch)
    return model.decode(batch.ids, memory, attention_mask=batch.attention_mask)


def pad_rows(ids: Tensor, side: str, extra: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """The shortened rows, padded to `extra` tokens more than the longest, and the mask."""
    batch, length = ids.shape
    lengths = (length - torch.arange(batch, device=ids.device)).clamp(min=1)[:, None]  # (batch, 1)
    index = torch.arange(length + extra, device=ids.device)[None]  # (1, length + extra)
    start = torch.zeros_like(lengths) if side == "right" else length + extra - lengths
    attention_mask = (index >= start) & (index < start + lengths)  # (batch, length + extra)
    tokens = ids.gather(1, (index - start).clamp(0, length - 1).expand(batch, -1))
    return tokens.where(attention_mask, torch.full_like(tokens, pad_id)), attention_mask


def unpadded_row(batch: TokenBatch, row: int) -> TokenBatch:
    """One row of a padded batch, without its padding."""

    def tokens_of(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        assert attention_mask is not None
        return ids[row][attention_mask[row]][None]

    source = batch.source
    if source is not None:
        source = tokens_of(source, batch.source_attention_mask)
    return TokenBatch(tokens_of(batch.ids, batch.attention_mask), None, source)


def relative_difference(a: Tensor, b: Tensor) -> float:
    """max |a - b| / max |b|; NaN if either has a NaN."""
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
