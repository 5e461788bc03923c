"""The Transformer: encoder, decoder or both, from one spec.

In: token ids. Out: the encoder's memory (`encode`), the decoder's stream (`decode`), logits (`logits`) or the training
loss (`loss`). Which stacks are present is the family. Told in docs/model.md, "The whole".
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model import spec as s
from qkv.model.block import make_block
from qkv.model.cache import Cache
from qkv.model.door import check
from qkv.model.dropout import Dropout
from qkv.model.experts import ExpertFeedForward
from qkv.model.head import LmHead, make_head
from qkv.model.init import initialise
from qkv.model.norms import make_norm
from qkv.model.positions import make_positions
from qkv.model.view import View, places_of


@dataclass
class Memory:
    """What the encoder has understood: a vector per source token, and which of them are real."""

    states: Tensor                # (batch, source, d_model)
    real: Tensor | None = None    # (batch, source), None: no padding

    @cached_property
    def view(self) -> View:
        """All of the memory may be seen by every query, padding apart."""
        return View(length=1, past=self.states.shape[1] - 1, real=self.real, device=self.states.device)

    def keep(self, rows: Tensor) -> "Memory":
        """The memory of these sentences, dropped, reordered or repeated."""
        return Memory(self.states.index_select(0, rows), None if self.real is None else self.real.index_select(0, rows))


class LayerStack(nn.Module):
    """Positions, then the blocks, then a last norm."""

    def __init__(self, stack: s.Stack, spec: s.Spec):
        super().__init__()
        layers = stack.each_layer()
        self.sees, self.limit = stack.sees, longest(spec, stack)
        self.positions = make_positions(spec, stack)
        self.embed_norm = make_norm(layers[0].norm, spec.d_model) if stack.embed_norm else nn.Identity()
        self.dropout = Dropout(spec.dropout)
        self.layers = nn.ModuleList(make_block(layer, spec, stack.sees) for layer in layers)
        self.norm = make_norm(layers[-1].norm, spec.d_model) if stack.final_norm else nn.Identity()

    def forward(
        self, x: Tensor, real: Tensor | None, memory: Memory | None = None, cache: Cache | None = None
    ) -> Tensor:
        length, past = x.shape[1], 0 if cache is None else cache.length
        refuse_mask(real, x)
        if self.limit is not None and past + length > self.limit:
            wrong = _("{past} tokens are too long", past=past + length)
            raise QkvError("ids", wrong, _("this model reads at most {limit}", limit=self.limit))
        if cache is not None:
            cache.note(real, len(x), length)
            real = cache.real
        places = places_of(length, past, real, x.device)                        # (batch or 1, length)
        view = View(length, past, self.sees, real, self.positions.turn(places, x.dtype), x.device)
        x = self.dropout(self.embed_norm(self.positions(x, places)))            # (batch, length, d_model)
        for index, block in enumerate(self.layers):
            x = block(x, view, memory, cache and cache.layers[index])
        return self.norm(x)


class Transformer(nn.Module):
    """ids -> vectors -> layers -> logits."""

    def __init__(self, spec: s.Spec):
        super().__init__()
        check(spec)
        self.spec = spec
        self.scale = math.sqrt(spec.d_model) if spec.scaled_embedding else 1.0
        self.embed = nn.Embedding(spec.vocab_size, spec.d_model)
        self.source_embed = nn.Embedding(spec.source_vocab_size, spec.d_model) if spec.source_vocab_size else None
        self.type_embed = nn.Embedding(spec.token_types, spec.d_model) if spec.token_types else None
        self.encoder = LayerStack(spec.encoder, spec) if spec.encoder else None
        self.decoder = LayerStack(spec.decoder, spec) if spec.decoder else None
        self.lm_head = make_head(spec)
        initialise(self, spec)

    def encode(self, ids: Tensor, real: Tensor | None = None, types: Tensor | None = None) -> Memory:
        """(batch, source) ids, and which of them are real, to a vector in context for each."""
        assert self.encoder is not None, "this model has no encoder"
        table = self.embed if self.source_embed is None else self.source_embed
        x = look_up(table, ids) * self.scale                                    # (batch, source, d_model)
        if self.type_embed is not None:
            x = x + (self.type_embed.weight[0] if types is None else look_up(self.type_embed, types))
        return Memory(self.encoder(x, real), real)

    def decode(
        self, ids: Tensor, memory: Memory | None = None, cache: Cache | None = None, real: Tensor | None = None
    ) -> Tensor:
        """(batch, target) ids to the stream after the last layer, (batch, target, d_model)."""
        assert self.decoder is not None, "this model has no decoder"
        x = look_up(self.embed, ids) * self.scale                               # (batch, target, d_model)
        return self.decoder(x, real, memory, cache)

    def logits(self, stream: Tensor) -> Tensor:
        """Scores over the vocabulary, (..., vocab); for a pooler: the sentence vectors."""
        assert self.lm_head is not None, "this model ends in its stream"
        return self.lm_head(stream, self.embed.weight)

    def loss(self, stream: Tensor, targets: Tensor, real: Tensor | None = None, label_smoothing: float = 0.0,
             r_drop: float = 0.0) -> Tensor:
        """The summed cross-entropy at real positions; the logits of the others are never computed.

        With r_drop, the second half of the batch is a second pass over the first half; r_drop is the
        weight of the KL divergence of the two.
        """
        assert isinstance(self.lm_head, LmHead), "only a head over the vocabulary has a loss"
        if real is None:
            stream, targets = stream.flatten(0, 1), targets.flatten()           # (tokens, d_model), (tokens,)
        else:
            stream, targets = stream[real], targets[real]
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < self.spec.vocab_size:
            raise out_of_range("targets", targets, self.spec.vocab_size)        # -1 would read the last row
        return self.lm_head.loss(stream, self.embed.weight, targets, label_smoothing, r_drop)

    def new_cache(self) -> Cache:
        """An empty memory for step-by-step decoding."""
        assert self.decoder is not None, "this model has no decoder"
        return Cache(len(self.decoder.layers))

    def balance_loss(self) -> Tensor:
        """The load-balancing loss of the last pass, summed over layers with experts; 0 where there are none."""
        parts = [module.balance for module in self.modules() if isinstance(module, ExpertFeedForward)]
        return torch.stack(parts).sum() if parts else self.embed.weight.new_zeros(())


def longest(spec: s.Spec, stack: s.Stack) -> int | None:
    """How many tokens fit; None where positions and mixers are rules that know no end."""
    has_table = isinstance(spec.positions, s.Learned) or any(isinstance(one.mixer, s.TokenMlp) for one in stack.layers)
    return spec.max_len if has_table else None


def look_up(table: nn.Embedding, ids: Tensor) -> Any:
    """The rows of these ids; ids that are none get one clear line."""
    if ids.ndim != 2 or ids.numel() == 0:
        raise QkvError("ids", _("a batch of shape {shape}", shape=tuple(ids.shape)), _("give (batch, length) with at least one token"))
    try:
        return table(ids)
    except IndexError:
        raise out_of_range("ids", ids, table.num_embeddings) from None


def refuse_mask(real: Tensor | None, x: Tensor) -> None:
    """A mask of numbers or of another shape would be read wrongly or not at all."""
    if real is None or (real.dtype == torch.bool and real.shape == x.shape[:2]):
        return
    wrong = f"{str(real.dtype).removeprefix('torch.')} {tuple(real.shape)}"
    raise QkvError("real", _("a mask of {wrong}", wrong=wrong), _("give bool {shape}, True = a token", shape=tuple(x.shape[:2])))


def out_of_range(where: str, ids: Tensor, size: int) -> QkvError:
    wrong = int(ids.max()) if int(ids.max()) >= size else int(ids.min())
    return QkvError(where, _("{wrong} is out of range", wrong=wrong), _("this vocabulary ends at {size}; is the tokenizer the model's own?", size=size - 1))
