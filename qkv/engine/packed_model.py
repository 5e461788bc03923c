"""The fast step: the same model, seen as few large operations for one new token per row.

In: a model and source sentences, then one id per row and step. Out: logits, equal to the model's own (proven in
tests/engine/test_stepper.py). Told in docs/performance.md, "Decoding".
"""

import math
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from qkv.engine.int8 import can_be_int8, int8_maker
from qkv.engine.kv_cache import VECTOR, KeyValues, whole
from qkv.engine.native_step import NativeProduct, NativeStep, native_product
from qkv.engine.packed_stack import FastStack
from qkv.engine.packed_weights import ROOM, Make, head_product, open_norm, product, stacked, version_of
from qkv.kernels.calling import can_be_native
from qkv.model import spec as s
from qkv.model.attention import CrossAttention, FusedCore
from qkv.model.block import Block, CrossBlock
from qkv.model.head import LmHead
from qkv.model.transformer import LayerStack, Transformer
from qkv.threads import one_torch_thread

SHORT = ROOM         # tokens of a source that the native library reads by itself; of longer ones torch's attention is faster
PLAIN = FusedCore()  # stands for the core of a mixer that has none


class FastModel:
    """A model as the fast step wants it; made once for a model and anew when its weights change."""

    def __init__(self, model: Transformer, make: Make = product):
        assert model.decoder is not None and model.spec.decoder is not None and isinstance(model.lm_head, LmHead)
        table, spec = model.embed.weight.detach(), model.spec
        self.decoder = FastStack(model.decoder, model.spec.decoder, table, model.scale, make)
        self.norm, gain = open_norm(model.decoder.norm, model.spec.decoder.layers[0].norm)
        self.head = head_product(model.lm_head, table, gain, make)
        self.native = NativeStep(self.decoder.layers, self.norm, self.head, table) if isinstance(self.head, NativeProduct) else None
        self.encoder = None
        if model.encoder is not None and spec.encoder is not None and is_common(model.encoder, spec.encoder):
            source = table if model.source_embed is None else model.source_embed.weight.detach()
            self.source_stack = model.encoder, spec.encoder, source, model.scale
            self.encoder = FastStack(*self.source_stack)
        self.crosses = [cross_of(block) for block in model.decoder.layers if isinstance(block, CrossBlock)]
        if self.crosses:
            self.memory = product(*self.memory_weights())
        self.parameters = list(model.parameters())
        self.version = version_of(self.parameters)

    @staticmethod
    def of(model: Transformer, int8: bool = False) -> "FastModel":
        """The joined weights of a model, kept as long as the model's own stay the same."""
        native = can_be_native(model.embed.weight)
        make = int8_maker(native) if int8 else native_product if native else product
        known = _kept.setdefault(model, {})
        kept = known.get(make)
        if kept is None or kept.parameters[0] is not model.embed.weight or kept.version != version_of(kept.parameters):
            kept = known[make] = FastModel(model, make)
        return kept

    def step(self, ids: Tensor, place: int | Tensor, cells: KeyValues, memory: KeyValues | None = None) -> Tensor:
        """(rows,) newest tokens -> (rows, vocab) logits of the next."""
        cells.reserve(len(ids) // cells.all.shape[2])
        return self._through(*self.decoder.enter(ids, place, cells, cells.used), cells, memory)

    def chain(self, ids: Tensor, place: int, cells: KeyValues, memory: KeyValues | None = None) -> Tensor:
        """(tokens,) of one row that follow each other -> (tokens, vocab) logits after each; the cells they fill are not yet in use."""
        cells.reserve(len(ids))
        return self._through(*self.decoder.enter_chain(ids, place, cells), cells.chain(len(ids)), memory)

    def _through(self, x: Tensor, turn: Tensor | None, cells: KeyValues, memory: KeyValues | None) -> Tensor:
        if self.native is not None:
            return self.native(x, turn, cells, memory)
        return self.logits(self.decoder.step(x, turn, cells, memory))

    def logits(self, x: Tensor) -> Tensor:
        """(rows, d_model) -> (rows, vocab)."""
        return self.head(self.norm(x))

    def memory_weights(self) -> tuple[Tensor, Tensor | None]:
        """Keys and values of all layers side by side."""
        return stacked([one for cross in self.crosses for one in (cross.k_proj, cross.v_proj)])

    @cached_property
    def native_encoder(self) -> tuple[FastStack, NativeStep] | None:
        """The encoder as a native step, if there is one; its head computes the keys and values of the cross-attention."""
        if self.native is None or self.encoder is None or self.encoder.sees != "all":
            return None
        stack, memory = FastStack(*self.source_stack, native_product), native_product(*self.memory_weights())
        assert isinstance(memory, NativeProduct)
        return stack, NativeStep(stack.layers, stack.norm, memory, stack.table)

    def remember(self, source_ids: Tensor, real: Tensor | None, model: Transformer) -> KeyValues:
        """The sources (sentences, length) as keys and values of every layer of the decoder, filled up to whole vectors."""
        more = whole(source_ids.shape[1]) - source_ids.shape[1]
        if source_ids.shape[1] <= SHORT and self.native_encoder is not None:
            with one_torch_thread():
                return self._as_cells(encode_native(*self.native_encoder, source_ids, real, more), real, source_ids.shape[1])
        states = model.encode(source_ids, real).states if self.encoder is None else self.encoder.normed(source_ids, real)
        made = self.memory(pad(states, (0, 0, 0, more)).flatten(0, 1))                # (sentences * cells, layers * 2 * kv_heads * d)
        return self._as_cells(made.view(len(source_ids), -1, made.shape[1]), real, source_ids.shape[1])

    def _as_cells(self, made: Tensor, real: Tensor | None, length: int) -> KeyValues:
        """Keys and values of all layers side by side, (sentences, cells, layers * 2 * kv_heads * d), as a cache; `length` cells hold tokens."""
        heads, (sentences, cells, _) = self.crosses[0].heads, made.shape
        made = made.view(sentences, cells, len(self.crosses), 2, heads.n_kv_heads, heads.d_head)
        made = made.permute(3, 2, 0, 4, 1, 5).contiguous()                          # (2, layers, sentences, kv_heads, cells, d)
        if heads.qk_norm:
            made[0] = torch.stack([cross.k_norm(keys) for cross, keys in zip(self.crosses, made[0], strict=True)])
        hidden = made.new_zeros(1, length) if real is None else as_hidden(real, made)
        kept = KeyValues(made, pad(hidden, (0, cells - length), value=-math.inf)[:, None])
        kept.look(cells)
        return kept


def encode_native(stack: FastStack, step: NativeStep, ids: Tensor, real: Tensor | None, more: int) -> Tensor:
    """(sentences, length) tokens -> (sentences, length + more, outputs of the step's head), zeros where there is no token.

    Sentences of one length go through the native step together, their tokens as beams that all attend to each other. A
    row's result depends neither on the batch nor on the number of threads, so scores are batch-invariant.
    """
    if real is None:
        return pad(encode_group(stack, step, ids).view(*ids.shape, -1), (0, 0, 0, more))
    lengths = real.sum(dim=1)                                                       # (sentences,)
    made = stack.table.new_zeros(*ids.shape, step.vocab)
    for length in lengths.unique().tolist():
        tokens = real & (lengths == length)[:, None]                                # those of all sentences of this length
        if length:
            made[tokens] = encode_group(stack, step, ids[tokens].view(-1, length))
    return pad(made, (0, 0, 0, more))


def encode_group(stack: FastStack, step: NativeStep, ids: Tensor) -> Tensor:
    """(sentences, length) tokens without padding -> (sentences * length, outputs of the step's head)."""
    sentences, length = ids.shape
    shape = 2, len(stack.layers), sentences, stack.heads.n_kv_heads, length, stack.heads.d_head
    cells = KeyValues(stack.table.new_empty(shape), stack.table.new_zeros(1, 1, length))
    return step(*stack.enter_all(ids), cells, None)


_kept: WeakKeyDictionary[Transformer, dict[Make, FastModel]] = WeakKeyDictionary()


class FastStepper:
    """Rows are hypotheses, sentence after sentence, each sentence with equally many."""

    def __init__(self, model: Transformer, source_ids: Tensor, real: Tensor | None, int8: bool = False):
        self.model, self.int8 = model, int8
        self.fast, self.place, self.beams = FastModel.of(model, int8), 0, 1
        decoder = self.fast.decoder
        self.memory = self.fast.remember(source_ids, real, model)
        shape = len(decoder.layers), len(source_ids), decoder.heads.n_kv_heads, VECTOR, decoder.heads.d_head
        self.cells = KeyValues.empty(shape, decoder.table)

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) last tokens -> (rows, vocab) logits of the next."""
        logits = self.fast.step(ids, self.place, self.cells, self.memory)
        self.place += 1
        return logits

    def keep(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """New row i goes on from old row rows[i]; `sentences` stay, in this order (None: all of them)."""
        if sentences is not None:
            self.cells.keep(sentences)
            self.memory.keep(sentences)
        beams, self.beams = self.beams, len(rows) // self.cells.all.shape[2]
        if (beams, self.beams) != (1, 1):
            self.cells.follow(rows.view(-1, self.beams) % beams)


def cross_of(block: CrossBlock) -> CrossAttention:
    cross = block.cross.branch
    assert isinstance(cross, CrossAttention)
    return cross


def as_hidden(real: Tensor, like: Tensor) -> Tensor:
    """0 at tokens, -inf at padding."""
    return like.new_zeros(real.shape).masked_fill_(~real, -math.inf)


def can_be_fast(model: Transformer, int8: bool = False) -> bool:
    """Whether this is a translator whose decoder is of the common kind (and whose numbers int8 can stand for)."""
    decoder, spec = model.decoder, model.spec.decoder
    return (
        (not int8 or can_be_int8(model.embed.weight)) and model.encoder is not None and model.spec.token_types == 0 and type(model.lm_head) is LmHead
        and all(_is_fused(block) for block in model.encoder.layers)
        and decoder is not None and spec is not None and spec.sees == "past" and is_common(decoder, spec)
    )  # fmt: skip


def is_common(stack: LayerStack, spec: s.Stack, opening: bool = False) -> bool:
    """Whether all blocks are alike and of the common kind: full attention, a plain feed-forward; none is being recorded.

    With `opening` the first one may be a convolution instead.
    """
    first, layer = spec.layers[0], spec.layers[-1]
    opens = opening and isinstance(first.mixer, s.Convolution) and first.repeat == 1
    return (
        len(spec.layers) == 1 + opens and isinstance(layer.mixer, s.Heads) and layer.mixer.window is None
        and first.norm == layer.norm and layer.norm.kind != "batch"
        and not any(isinstance(one.feed_forward, s.Experts) for one in (first, layer))
        and all(_is_fused(block) for block in stack.layers)
    )  # fmt: skip


def _is_fused(block: nn.Module) -> bool:
    """Not while a recording has swapped the attention's core."""
    assert isinstance(block, Block | CrossBlock)
    parts = [block.attn, block.cross] if isinstance(block, CrossBlock) else [block.attn]
    return all(isinstance(getattr(part.branch, "core", PLAIN), FusedCore) for part in parts)
