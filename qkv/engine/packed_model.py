"""A model with packed weights: prefill, decode steps and the encoder, by the native library or by torch operations.

In: token ids. Out: logits, equal to the model's own (tests/engine/test_stepper.py). On the native path they are
batch-invariant to the last bit. Explained in docs/performance.md, "Decoding".
"""

import math
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from qkv.engine.int8 import can_be_int8, int8_maker
from qkv.engine.kv_cache import (
    END,
    POSITION,
    SEQUENCE,
    SLOT,
    SLOT_MULTIPLE,
    KVCache,
    next_rows,
    prompt_rows,
    round_up,
)
from qkv.engine.native_step import NativeProduct, NativeStep, native_product
from qkv.engine.packed_layers import PackedStack
from qkv.engine.packed_weights import (
    Make,
    Map,
    head_product,
    open_norm,
    product,
    stacked,
    version_of,
)
from qkv.kernels.calling import can_be_native
from qkv.model import spec as s
from qkv.model.attention import CrossAttention, FusedCore
from qkv.model.block import Block, CrossBlock
from qkv.model.eval_mode import eval_mode
from qkv.model.head import LmHead
from qkv.model.transformer import LayerStack, Transformer

PREFILL_CHUNK_ROWS = (
    512  # tokens of a native step: the results are the same for any number, only its memory grows
)
SDPA = FusedCore()  # stands for the core of a mixer that has none


class PackedModel:
    """The packed weights of a model; made once for a model and again when its weights change."""

    def __init__(self, model: Transformer, make: Make = product):
        assert (
            model.decoder is not None
            and model.spec.decoder is not None
            and isinstance(model.lm_head, LmHead)
        )
        table, spec = model.embed.weight.detach(), model.spec
        self.decoder = PackedStack(model.decoder, model.spec.decoder, table, model.scale, make)
        self.norm, gain = open_norm(model.decoder.norm, model.spec.decoder.layers[0].norm)
        self.head = head_product(model.lm_head, table, gain, make)
        self.native = (
            NativeStep(self.decoder, self.norm, self.head)
            if isinstance(self.head, NativeProduct)
            else None
        )
        self.source_stack = None
        if (
            model.encoder is not None
            and spec.encoder is not None
            and is_common(model.encoder, spec.encoder)
        ):
            source = table if model.source_embed is None else model.source_embed.weight.detach()
            self.source_stack = model.encoder, spec.encoder, source, model.scale
        self.crosses = [
            cross_of(block) for block in model.decoder.layers if isinstance(block, CrossBlock)
        ]
        self.limit, self.parameters = model.decoder.limit, list(model.parameters())
        self.version = version_of(self.parameters)

    @staticmethod
    def of(model: Transformer, int8: bool = False) -> "PackedModel":
        """The packed weights of a model, kept as long as the model's own stay the same."""
        native = can_be_native(model.embed.weight)
        make = int8_maker(native) if int8 else native_product if native else product
        known = _kept.setdefault(model, {})
        kept = known.get(make)
        if (
            kept is None
            or kept.parameters[0] is not model.embed.weight
            or kept.version != version_of(kept.parameters)
        ):
            kept = known[make] = PackedModel(model, make)
        return kept

    # ── The decoder ──────────────────────────────────────────────────────────────────────────────────────────────
    def prefill(
        self, prompts: list[list[int]], memory: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        """Logits after each prompt, (rows, vocab), and the cache with the keys and values of their tokens."""
        lengths = list(map(len, prompts))
        assert min(lengths) >= 1, "a prompt has at least one token"
        assert (memory is None) == (not self.crosses), "sources are for models with an encoder"
        self._check_length(max(lengths))
        cache = self.decoder.new_cache(len(prompts), round_up(max(lengths) + 1))
        if max(lengths) == 1:  # <bos> of a translation: a step needs less preparation
            return self.step(
                self._ids([ids[0] for ids in prompts]), next_rows([0] * len(prompts)), cache, memory
            ), cache
        if self.native is not None:
            logits = self._prefill_native(prompts, cache, memory)
        else:
            logits = self._logits(
                self._read(prompts, cache, memory)[
                    torch.arange(len(lengths)), [length - 1 for length in lengths]
                ]
            )
        cache.fill(lengths)
        return logits, cache

    def step(
        self, ids: Tensor, rows: Tensor, cache: KVCache, memory: KVCache | None = None
    ) -> Tensor:
        """(rows,) newest tokens -> (rows, vocab) logits of the next; the rows (4, rows) stand at the next token afterwards."""
        beams = len(ids) // cache.sequences
        cache.reserve(beams)
        if self.limit is not None:
            self._check_length(int(rows[POSITION].max()) + 1)
        if self.native is not None:
            cache.used += beams
            return self.native(ids, rows, cache, memory, advance=beams)
        if cache.even:
            x = self.decoder.step(ids, int(rows[POSITION, 0]), None, cache, memory)
        else:
            positions, slots = rows[[POSITION, SLOT]].long().to(ids.device)
            x = self.decoder.step(ids, positions, slots, cache, memory)
        for line, slots in ((SLOT, beams), (POSITION, 1), (END, beams)):
            rows[line] += slots
        return self._logits(x)

    def _check_length(self, length: int) -> None:
        """The native library would read beyond the table of learned positions."""
        assert self.limit is None or length <= self.limit, (
            f"{length} tokens, of at most {self.limit}"
        )

    def all_logits(self, ids: list[int]) -> Tensor:
        """Logits after every token of one sequence, (tokens, vocab)."""
        self._check_length(len(ids))
        cache = self.decoder.new_cache(1, round_up(len(ids)))
        if self.native is None:
            return self._logits(self._read([ids], cache, None)[0])
        return torch.cat([self.native(*chunk, cache) for chunk in self._chunks([ids])])

    def _prefill_native(
        self, prompts: list[list[int]], cache: KVCache, memory: KVCache | None
    ) -> Tensor:
        """All tokens of all prompts as rows, without padding; only the last of each prompt is multiplied by the head."""
        assert self.native is not None
        ends, logits, first = torch.tensor(list(map(len, prompts))).cumsum(0) - 1, [], 0
        for ids, rows in self._chunks(prompts):
            outputs = ends[(ends >= first) & (ends < first + len(ids))] - first
            logits.append(self.native(ids, rows, cache, memory, outputs.int()))
            first += len(ids)
        return torch.cat(logits)

    def _chunks(self, prompts: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
        """Ids and rows of at most PREFILL_CHUNK_ROWS tokens."""
        rows, ids = (
            prompt_rows(list(map(len, prompts))),
            self._ids([id for prompt in prompts for id in prompt]),
        )
        pieces = zip(
            ids.split(PREFILL_CHUNK_ROWS), rows.split(PREFILL_CHUNK_ROWS, dim=1), strict=True
        )
        return [(piece, some.contiguous()) for piece, some in pieces]

    def _read(self, prompts: list[list[int]], cache: KVCache, memory: KVCache | None) -> Tensor:
        """All tokens by torch operations, (rows, longest, d_model); prompts are padded at their end, where nothing is read."""
        ids = self._ids(right_padded(prompts))
        return self.decoder.read(ids, None, cache, memory).view(*ids.shape, -1)

    def _logits(self, x: Tensor) -> Tensor:
        """(rows, d_model) -> (rows, vocab)."""
        return self.head(self.norm(x))

    def _ids(self, ids: list[int] | list[list[int]]) -> Tensor:
        return torch.tensor(ids, device=self.decoder.table.device)

    # ── The encoder ──────────────────────────────────────────────────────────────────────────────────────────────
    @cached_property
    def encoder(self) -> PackedStack | None:
        """The encoder for torch operations; None: the model's own is used."""
        return None if self.source_stack is None else PackedStack(*self.source_stack)

    @cached_property
    def native_encoder(self) -> tuple[PackedStack, NativeStep] | None:
        """The encoder as a native step, if there is one; its head gives the keys and values of the cross-attention."""
        if self.native is None or self.source_stack is None or self.source_stack[0].sees != "all":
            return None
        stack, memory = (
            PackedStack(*self.source_stack, native_product),
            native_product(*self.memory_weights()),
        )
        assert isinstance(memory, NativeProduct)
        return stack, NativeStep(stack, stack.norm, memory)

    def memory_weights(self) -> tuple[Tensor, Tensor | None]:
        """Keys and values of all layers side by side."""
        return stacked(
            [linear for cross in self.crosses for linear in (cross.k_proj, cross.v_proj)]
        )

    @cached_property
    def memory(self) -> Map:
        return product(*self.memory_weights())

    def encode(self, sources: list[list[int]], model: Transformer) -> KVCache:
        """The sources as keys and values of every cross-attention."""
        lengths = list(map(len, sources))
        if self.native_encoder is not None:
            return self._as_memory(encode_native(*self.native_encoder, sources), lengths)
        ids = self._ids(right_padded(sources))
        real = (
            None
            if min(lengths) == max(lengths)
            else torch.arange(ids.shape[1], device=ids.device) < self._ids(lengths)[:, None]
        )
        if self.encoder is None:
            states = model.encode(ids, real).states
        else:
            cache = self.encoder.new_cache(len(ids), ids.shape[1])
            states = self.encoder.norm(self.encoder.read(ids, real, cache)).view(*ids.shape, -1)
        made = self.memory(pad(states, (0, 0, 0, -ids.shape[1] % SLOT_MULTIPLE)).flatten(0, 1))
        return self._as_memory(made.view(len(ids), -1, made.shape[1]), lengths)

    def _as_memory(self, made: Tensor, lengths: list[int]) -> KVCache:
        """Keys and values of all layers side by side, (sequences, slots, layers * 2 * kv_heads * d), as a cache."""
        heads, (sequences, slots, _) = self.crosses[0].heads, made.shape
        made = made.view(sequences, slots, len(self.crosses), 2, heads.n_kv_heads, heads.d_head)
        made = made.permute(
            3, 2, 0, 4, 1, 5
        ).contiguous()  # (2, layers, sequences, kv_heads, slots, d)
        if heads.qk_norm:
            made[0] = torch.stack(
                [cross.k_norm(keys) for cross, keys in zip(self.crosses, made[0], strict=True)]
            )
        memory = KVCache(
            made,
            made.new_full((1, 1, slots), -math.inf),
            lengths=torch.tensor(lengths, dtype=torch.int32),
        )
        memory.fill(lengths)
        memory.view(slots)
        return memory


_kept: WeakKeyDictionary[Transformer, dict[Make, PackedModel]] = WeakKeyDictionary()


def encode_native(stack: PackedStack, step: NativeStep, sources: list[list[int]]) -> Tensor:
    """Every token of every source as a row that attends to its whole source -> (sources, slots, outputs of the step)."""
    lengths = list(map(len, sources))
    assert max(lengths) <= (stack.positions.limit or max(lengths)), (
        "a source is longer than the table of positions"
    )
    rows, longest = prompt_rows(lengths, causal=False), max(lengths)
    ids = torch.tensor([id for source in sources for id in source])
    made = step(ids, rows, stack.new_cache(len(sources), longest))  # (tokens, outputs)
    if min(lengths) == longest:
        return pad(made.view(len(sources), longest, -1), (0, 0, 0, -longest % SLOT_MULTIPLE))
    padded = made.new_zeros(len(sources), round_up(longest), step.outputs)
    padded[rows[SEQUENCE].long(), rows[SLOT].long()] = made
    return padded


def int8_loss(model: Transformer, ids: Tensor) -> tuple[float, float]:
    """Mean negative log-likelihood per token of (rows, length) ids, of the model and of its int8 weights; perplexity is its exp."""
    with eval_mode(model):
        return mean_loss(PackedModel.of(model), ids), mean_loss(
            PackedModel.of(model, int8=True), ids
        )


def mean_loss(packed: PackedModel, ids: Tensor) -> float:
    """Each token but the first of each row is predicted from those before it."""
    if ids.shape[1] < 2:
        return math.nan
    # One row's logits at a time: those of all rows would not fit into memory.
    sums = [
        cross_entropy(packed.all_logits(row[:-1].tolist()).double(), row[1:], reduction="sum")
        for row in ids
    ]
    return sum(map(float, sums)) / (ids.numel() - len(ids))


def right_padded(rows: list[list[int]]) -> list[list[int]]:
    """Rows of one length, filled up with zeros."""
    longest = max(map(len, rows))
    return [row + [0] * (longest - len(row)) for row in rows]


def cross_of(block: CrossBlock) -> CrossAttention:
    cross = block.cross.branch
    assert isinstance(cross, CrossAttention)
    return cross


# ── Which models ─────────────────────────────────────────────────────────────────────────────────────────────────
def supports(model: Transformer, int8: bool = False) -> bool:
    """Whether the packed steps compute this model's decoder: all blocks alike, full attention, a plain feed-forward.

    A decoder-only model may begin with a convolution. `int8`: whether its weights can be quantized here. Not while a recording
    has replaced an attention core.
    """
    spec = model.spec.decoder
    if (
        model.decoder is None
        or spec is None
        or spec.sees != "past"
        or type(model.lm_head) is not LmHead
    ):
        return False
    encoder = [] if model.encoder is None else list(model.encoder.layers)
    return (
        (not int8 or can_be_int8(model.embed.weight))
        and (model.encoder is None or model.spec.token_types == 0)
        and all(is_fused(block) for block in encoder)
        and is_common(model.decoder, spec, convolution=model.encoder is None)
    )


def is_common(stack: LayerStack, spec: s.Stack, convolution: bool = False) -> bool:
    """Whether all blocks are alike and of the kind that is packed; with `convolution` the first one may be one."""
    first, layer = spec.layers[0], spec.layers[-1]
    begins = convolution and isinstance(first.mixer, s.Convolution) and first.repeat == 1
    return (
        len(spec.layers) == 1 + begins
        and isinstance(layer.mixer, s.Heads)
        and layer.mixer.window is None
        and first.norm == layer.norm
        and layer.norm.kind != "batch"
        and not any(isinstance(part.feed_forward, s.Experts) for part in (first, layer))
        and all(is_fused(block) for block in stack.layers)
    )


def is_fused(block: nn.Module) -> bool:
    """Whether no recording has replaced an attention core of this block."""
    assert isinstance(block, Block | CrossBlock)
    parts = [block.attn, block.cross] if isinstance(block, CrossBlock) else [block.attn]
    return all(isinstance(getattr(part.branch, "core", SDPA), FusedCore) for part in parts)
