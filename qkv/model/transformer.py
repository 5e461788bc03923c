"""The Transformer: encoder-only, decoder-only or encoder-decoder, built from one spec.

`encode` gives the encoder's memory, `decode` the decoder's hidden states, `logits` and `loss` the
output. See docs/explanation/model.md, "Transformer".
"""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model import spec as s
from qkv.model.attention_context import AttentionContext, position_ids_of
from qkv.model.block import Block, CrossBlock
from qkv.model.cache import Cache, new_mixer_cache
from qkv.model.check_spec import check_spec
from qkv.model.custom import allow_custom
from qkv.model.dropout import Dropout
from qkv.model.experts import ExpertFeedForward
from qkv.model.head import LmHead, make_head
from qkv.model.init import initialize
from qkv.model.norms import make_norm
from qkv.model.positions import make_positions, max_positions

__all__ = ["Transformer"]


@dataclass
class Memory:
    """The encoder's output: a hidden state per source token, and the source's attention mask."""

    states: Tensor                        # (batch, source, d_model)
    attention_mask: Tensor | None = None  # (batch, source); None: no padding

    @cached_property
    def context(self) -> AttentionContext:
        """The context of cross-attention: every query may attend to all source tokens."""
        past, device = self.states.shape[1] - 1, self.states.device
        return AttentionContext(1, past, attention_mask=self.attention_mask, device=device)

    def reorder(self, rows: Tensor) -> "Memory":
        """The memory of these rows of the batch: dropped, reordered or repeated."""
        mask = self.attention_mask
        mask = None if mask is None else mask.index_select(0, rows)
        return Memory(self.states.index_select(0, rows), mask)


class LayerStack(nn.Module):
    """An encoder or decoder: positions, blocks, final norm."""

    def __init__(self, stack: s.Stack, spec: s.Spec):
        super().__init__()
        layers, d_model = stack.each_layer(), spec.d_model
        self.causal, self.limit = stack.causal, max_positions(spec, stack)
        self.positions = make_positions(spec, stack)
        self.embed_norm = make_norm(layers[0].norm, d_model) if stack.embed_norm else nn.Identity()
        self.dropout = Dropout(spec.dropout)
        self.layers = nn.ModuleList(
            (Block if layer.cross is None else CrossBlock)(layer, spec, stack.causal)
            for layer in layers
        )
        self.norm = make_norm(layers[-1].norm, d_model) if stack.final_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        memory: Memory | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        length, past = x.shape[1], 0 if cache is None else cache.length
        check_attention_mask(attention_mask, x)
        self.check_length(past + length)
        if cache is not None:
            cache.append_mask(attention_mask, len(x), length)
            attention_mask = cache.attention_mask
        position_ids = position_ids_of(length, past, attention_mask, x.device)
        rotation = self.positions.rotation(position_ids, x.dtype)
        alibi = x.dtype if self.positions.alibi else None
        context = AttentionContext(
            length, past, self.causal, attention_mask, rotation, x.device, alibi
        )
        x = self.embed_norm(self.positions(x, position_ids))       # (batch, length, d_model)
        x = self.dropout(x)
        for index, block in enumerate(self.layers):
            x = block(x, context, memory, cache and cache.layers[index])
        return self.norm(x)                                        # (batch, length, d_model)

    def check_length(self, n_tokens: int) -> None:
        if self.limit is not None and n_tokens > self.limit:
            wrong = _("{n_tokens} tokens are too long", n_tokens=n_tokens)
            raise QkvError("ids", wrong, _("this model reads at most {limit}", limit=self.limit))


class Transformer(nn.Module):
    """ids -> embeddings -> layers -> logits.

    Example:
        model = qkv.Transformer(qkv.preset("causal-lm", vocab_size=1_000))
        hidden = model.decode(ids)     # (batch, length, d_model)
        logits = model.logits(hidden)  # (batch, length, vocab_size)

    Attributes:
        spec: The architecture.
        embed: The embedding table.
        encoder, decoder: The layer stacks; None: the model has none.
        lm_head: The output layer; None: the model has none.
    """

    def __init__(self, spec: s.Spec, custom: Iterable[str] = ()):
        """Build a model with new weights.

        Args:
            spec: The architecture.
            custom: The import paths of the spec's custom parts, "package.module:Class".

        Raises:
            QkvError: The spec is impossible, or it has a custom part that `custom` does not name.
        """
        super().__init__()
        check_spec(spec)
        with allow_custom(custom) if custom else nullcontext():
            self._build(spec)
        self.built = structure_of(self)

    def _build(self, spec: s.Spec) -> None:
        d_model, n_source, n_types = spec.d_model, spec.source_vocab_size, spec.token_types
        self.spec = spec
        self.scale = math.sqrt(d_model) if spec.scaled_embedding else 1.0
        self.embed = nn.Embedding(spec.vocab_size, d_model)
        self.source_embed = nn.Embedding(n_source, d_model) if n_source else None
        self.type_embed = nn.Embedding(n_types, d_model) if n_types else None
        self.encoder = LayerStack(spec.encoder, spec) if spec.encoder else None
        self.decoder = LayerStack(spec.decoder, spec) if spec.decoder else None
        self.lm_head = make_head(spec)
        initialize(self, spec)

    def encode(
        self, ids: Tensor, attention_mask: Tensor | None = None, types: Tensor | None = None
    ) -> Memory:
        """Run the encoder.

        Args:
            ids: (batch, source) token ids.
            attention_mask: (batch, source), True = token, False = padding; None: no padding.
            types: (batch, source) token types; None: all 0.

        Returns:
            The memory, with states (batch, source, d_model).
        """
        assert self.encoder is not None, "this model has no encoder"
        table = self.source_embed or self.embed
        x = look_up(table, ids) * self.scale                       # (batch, source, d_model)
        if self.type_embed is not None:
            row = self.type_embed.weight[0] if types is None else look_up(self.type_embed, types)
            x = x + row
        return Memory(self.encoder(x, attention_mask), attention_mask)

    def decode(
        self,
        ids: Tensor,
        memory: Memory | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder.

        Args:
            ids: (batch, target) token ids; with a cache, the new ones only.
            memory: The encoder's output, for cross-attention.
            cache: The KV cache of the earlier tokens; it is extended.
            attention_mask: (batch, target), True = token, False = padding; None: no padding.

        Returns:
            The hidden states of the last layer, (batch, target, d_model).
        """
        assert self.decoder is not None, "this model has no decoder"
        x = look_up(self.embed, ids) * self.scale                  # (batch, target, d_model)
        return self.decoder(x, attention_mask, memory, cache)

    def logits(self, stream: Tensor) -> Tensor:
        """Run the head.

        Args:
            stream: Hidden states, (..., d_model).

        Returns:
            Logits over the vocabulary, (..., vocab); with a pooler: sentence vectors.
        """
        assert self.lm_head is not None, "this model has no head"
        return self.lm_head(stream, self.embed.weight)

    def loss(
        self, stream: Tensor, targets: Tensor, attention_mask: Tensor | None = None,
        label_smoothing: float = 0.0, r_drop: float = 0.0,
    ) -> Tensor:
        """Compute the summed cross-entropy; the logits of padding are not computed.

        Args:
            stream: Hidden states, (batch, target, d_model).
            targets: (batch, target) token ids to predict.
            attention_mask: (batch, target), True = token, False = padding; None: no padding.
            label_smoothing: The probability that is spread over the vocabulary.
            r_drop: The weight of the KL divergence between the two halves of the batch, the
                second being a second pass over the first; 0: one pass.

        Returns:
            The sum over tokens.
        """
        return self.losses(stream, targets, attention_mask, label_smoothing, r_drop)[0]

    def losses(
        self, stream: Tensor, targets: Tensor, attention_mask: Tensor | None = None,
        label_smoothing: float = 0.0, r_drop: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss, and the cross-entropy alone.

        Args:
            stream: As in `loss`.
            targets: As in `loss`.
            attention_mask: As in `loss`.
            label_smoothing: As in `loss`.
            r_drop: As in `loss`.

        Returns:
            The loss; the cross-entropy without smoothing and R-Drop, detached.
        """
        assert isinstance(self.lm_head, LmHead), "only a head over the vocabulary has a loss"
        if attention_mask is None:
            stream, targets = stream.flatten(0, 1), targets.flatten()
        else:
            stream, targets = stream[attention_mask], targets[attention_mask]
        vocab_size = self.spec.vocab_size        # stream (tokens, d_model), targets (tokens,)
        if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < vocab_size:
            raise out_of_range("targets", targets, vocab_size)     # -1 would read the last row
        return self.lm_head.losses(stream, self.embed.weight, targets, label_smoothing, r_drop)

    def new_cache(self) -> Cache:
        """Make an empty KV cache.

        Returns:
            The cache, to be passed to `decode`.
        """
        assert self.decoder is not None, "this model has no decoder"
        cache = Cache(len(self.decoder.layers))
        for layer, block in zip(cache.layers, self.decoder.layers, strict=True):
            layer.attn = new_mixer_cache(block.get_submodule("attn.branch"))
        return cache

    def router_aux_loss(self) -> Tensor:
        """Compute the load-balancing loss of the last pass.

        Returns:
            The sum over MoE layers; 0 without experts.
        """
        experts = [module for module in self.modules() if isinstance(module, ExpertFeedForward)]
        if not experts:
            return self.embed.weight.new_zeros(())
        return torch.stack([module.router_aux_loss for module in experts]).sum()


def structure_of(model: nn.Module) -> dict[str, type]:
    """The class of every module and weight, by name; attention cores may change while training."""
    weights: dict[str, type] = dict.fromkeys(model.state_dict(), Tensor)
    modules = {name: type(module) for name, module in model.named_modules()}
    return {name: kind for name, kind in modules.items() if not name.endswith(".core")} | weights


def look_up(table: nn.Embedding, ids: Tensor) -> Any:
    """Embeddings of these ids; an error for ids of a wrong shape or out of range."""
    if ids.ndim != 2 or ids.numel() == 0:
        wrong = _("a batch of shape {shape}", shape=tuple(ids.shape))
        raise QkvError("ids", wrong, _("give (batch, length) with at least one token"))
    try:
        return table(ids)
    except IndexError:
        raise out_of_range("ids", ids, table.num_embeddings) from None


def check_attention_mask(attention_mask: Tensor | None, x: Tensor) -> None:
    """Raise an error unless the mask is boolean and of the shape of the ids."""
    mask, shape = attention_mask, tuple(x.shape[:2])
    if mask is not None and (mask.dtype != torch.bool or mask.shape != shape):
        wrong = _("a mask of {dtype} {shape}", dtype=str(mask.dtype)[6:], shape=tuple(mask.shape))
        raise QkvError("attention_mask", wrong, _("give bool {shape}, True = token", shape=shape))


def out_of_range(where: str, ids: Tensor, size: int) -> QkvError:
    wrong_id = int(ids.max()) if int(ids.max()) >= size else int(ids.min())
    wrong = _("{wrong_id} is out of range", wrong_id=wrong_id)
    right = _("this vocabulary ends at {last_id}; is the tokenizer the model's own?",
              last_id=size - 1)
    return QkvError(where, wrong, right)
