"""A model with packed weights: prefill, decode steps and encoder, in the native library or torch.

Logits equal the model's own up to rounding; on the native path they are batch-invariant to the last
bit. See docs/explanation/performance.md.
"""

import math
from functools import cached_property
from itertools import chain
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import pad

from qkv.engine.int8 import int8_maker
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
from qkv.engine.packed_stack import PackedStack, is_packable
from qkv.engine.packed_weights import (
    MakeProduct,
    Map,
    head_product,
    merged_weights,
    product,
    split_gain,
)
from qkv.kernels.build import can_be_native
from qkv.model.attention import CrossAttention
from qkv.model.block import CrossBlock
from qkv.model.eval_mode import eval_mode
from qkv.model.head import LmHead
from qkv.model.transformer import Transformer

PREFILL_CHUNK_ROWS = 512  # tokens per native step: limits memory; results do not depend on it


class WeightVersions:
    """The weights of a model when they were packed."""

    def __init__(self, model: Transformer):
        self.parameters = list(model.parameters())
        self.versions = self._now()

    def are_current(self, model: Transformer) -> bool:
        """Whether no weight was modified or replaced since."""
        return self.parameters[0] is model.embed.weight and self.versions == self._now()

    def _now(self) -> list[tuple[int, int]]:
        # Inference tensors have no version counter: for them only replacement is detected.
        return [
            (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
            for weight in self.parameters
        ]


class PackedModel:
    """The packed weights of a model, packed again when the model's weights change."""

    def __init__(self, model: Transformer, make: MakeProduct = product):
        spec, decoder = model.spec, model.decoder
        assert decoder is not None and spec.decoder is not None
        assert isinstance(model.lm_head, LmHead)
        table = model.embed.weight.detach()
        self.decoder = PackedStack(decoder, spec.decoder, table, model.scale, make)
        self.norm, gain = split_gain(decoder.norm, spec.decoder.layers[0].norm)
        self.head = head_product(model.lm_head, table, gain, make)
        self.native: NativeStep | None = None
        if isinstance(self.head, NativeProduct):
            self.native = NativeStep(self.decoder, self.norm, self.head)
        self.source_stack = None
        encoder = model.encoder
        if encoder is not None and spec.encoder is not None and is_packable(spec.encoder):
            source = table if model.source_embed is None else model.source_embed.weight.detach()
            self.source_stack = encoder, spec.encoder, source, model.scale
        self.crosses = [
            cross_attention(block) for block in decoder.layers if isinstance(block, CrossBlock)
        ]
        self.limit, self.device, self.weights = decoder.limit, table.device, WeightVersions(model)

    @staticmethod
    def of(model: Transformer, int8: bool = False) -> "PackedModel":
        """The packed weights of a model, cached until the model's weights change."""
        packed_models = _packed_models.setdefault(model, {})
        packed = packed_models.get(int8)
        if packed is None or not packed.weights.are_current(model):
            native = can_be_native(model.embed.weight)
            make = int8_maker(native) if int8 else native_product if native else product
            with torch.inference_mode():
                packed = packed_models[int8] = PackedModel(model, make)
        return packed

    # ── Decoder ──────────────────────────────────────────────────────────────────────────────────
    def prefill(
        self, prompts: list[list[int]], memory: KVCache | None = None
    ) -> tuple[Tensor, KVCache]:
        """Logits after each prompt, (rows, vocab), and the KV cache of the prompts."""
        lengths = list(map(len, prompts))
        assert min(lengths) >= 1, "a prompt has at least one token"
        assert (memory is None) == (not self.crosses), "sources need a model with an encoder"
        self._check_length(max(lengths))
        cache = KVCache.empty(self.decoder, len(prompts), round_up(max(lengths) + 1))
        if max(lengths) == 1:  # <bos> of a translation: a decode step has less overhead
            first_ids = torch.tensor(prompts, device=self.device)[:, 0]
            return self.step(first_ids, next_rows([0] * len(prompts)), cache, memory), cache
        if self.native is not None:
            logits = self._prefill_native(prompts, cache, memory)
        else:
            stream = self._forward(prompts, cache, memory)  # (rows, longest, d_model)
            last = [length - 1 for length in lengths]
            logits = self._logits(stream[torch.arange(len(lengths)), last])
        cache.fill(lengths)
        return logits, cache

    def step(
        self, ids: Tensor, rows: Tensor, cache: KVCache, memory: KVCache | None = None
    ) -> Tensor:
        """(rows,) new tokens -> (rows, vocab) logits of the next; `rows` (4, rows) are advanced."""
        beams = ids.shape[0] // cache.sequences
        cache.reserve(beams)
        if self.limit is not None:
            self._check_length(int(rows[POSITION].max()) + 1)
        if self.native is not None:
            cache.used += beams
            return self.native(ids, rows, cache, memory, advance=beams)
        if cache.equal_lengths:
            x = self.decoder.step(ids, int(rows[POSITION, 0]), None, cache, memory)
        else:
            positions, slots = rows[[POSITION, SLOT]].long().to(ids.device)
            x = self.decoder.step(ids, positions, slots, cache, memory)
        for line, slots in ((SLOT, beams), (POSITION, 1), (END, beams)):
            rows[line] += slots
        return self._logits(x)

    def _check_length(self, length: int) -> None:
        """The native library would read beyond the table of learned positions."""
        fits = self.limit is None or length <= self.limit
        assert fits, f"{length} tokens, of at most {self.limit}"

    def all_logits(self, ids: list[int]) -> Tensor:
        """Logits after every token of one sequence, (tokens, vocab)."""
        self._check_length(len(ids))
        cache = KVCache.empty(self.decoder, 1, round_up(len(ids)))
        if self.native is None:
            return self._logits(self._forward([ids], cache, None)[0])
        return torch.cat([self.native(*chunk, cache) for chunk in self._chunks([ids])])

    def _prefill_native(
        self, prompts: list[list[int]], cache: KVCache, memory: KVCache | None
    ) -> Tensor:
        """All tokens as rows, without padding; logits only for the last token of each prompt."""
        assert self.native is not None
        ends, logits, first = torch.tensor(list(map(len, prompts))).cumsum(0) - 1, [], 0
        for ids, rows in self._chunks(prompts):
            outputs = ends[(ends >= first) & (ends < first + len(ids))] - first
            logits.append(self.native(ids, rows, cache, memory, outputs.int()))
            first += len(ids)
        return torch.cat(logits)

    def _chunks(self, prompts: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
        """Ids and rows of at most PREFILL_CHUNK_ROWS tokens."""
        rows = prompt_rows(list(map(len, prompts))).split(PREFILL_CHUNK_ROWS, dim=1)
        ids = torch.tensor(list(chain(*prompts))).split(PREFILL_CHUNK_ROWS)
        chunks = zip(ids, rows, strict=True)
        return [(chunk_ids, chunk_rows.contiguous()) for chunk_ids, chunk_rows in chunks]

    def _forward(self, prompts: list[list[int]], cache: KVCache, memory: KVCache | None) -> Tensor:
        """All tokens in torch operations, right-padded: (rows, longest, d_model)."""
        ids = torch.tensor(right_padded(prompts), device=self.device)
        return self.decoder.forward(ids, None, cache, memory).view(*ids.shape, -1)

    def _logits(self, x: Tensor) -> Tensor:
        """(rows, d_model) -> (rows, vocab)."""
        return self.head(self.norm(x))

    # ── Encoder ──────────────────────────────────────────────────────────────────────────────────
    @cached_property
    def encoder(self) -> PackedStack | None:
        """The encoder for torch operations; None: the model's own is used."""
        return None if self.source_stack is None else PackedStack(*self.source_stack)

    @cached_property
    def native_encoder(self) -> tuple[PackedStack, NativeStep] | None:
        """The encoder as a native step, which outputs the keys and values of cross-attention."""
        if self.native is None or self.source_stack is None or self.source_stack[0].causal:
            return None
        stack = PackedStack(*self.source_stack, native_product)
        memory = native_product(*self.memory_weights())
        assert isinstance(memory, NativeProduct)
        return stack, NativeStep(stack, stack.norm, memory)

    def memory_weights(self) -> tuple[Tensor, Tensor | None]:
        """The key and value projections of all cross-attentions as one matrix."""
        linears = [linear for cross in self.crosses for linear in (cross.k_proj, cross.v_proj)]
        return merged_weights(linears)

    @cached_property
    def memory(self) -> Map:
        return product(*self.memory_weights())

    def encode(self, sources: list[list[int]], model: Transformer) -> KVCache:
        """The keys and values of the sources for every cross-attention."""
        lengths = list(map(len, sources))
        if self.native_encoder is not None:
            return self._as_memory(encode_native(*self.native_encoder, sources), lengths)
        ids = torch.tensor(right_padded(sources), device=self.device)
        attention_mask = right_padding_mask(lengths, self.device)
        if self.encoder is None:
            with eval_mode(model):
                states = model.encode(ids, attention_mask).states
        else:
            cache = KVCache.empty(self.encoder, len(ids), ids.shape[1])
            stream = self.encoder.forward(ids, attention_mask, cache)
            states = self.encoder.norm(stream).view(*ids.shape, -1)
        padded = pad(states, (0, 0, 0, -ids.shape[1] % SLOT_MULTIPLE)).flatten(0, 1)
        kv = self.memory(padded)
        return self._as_memory(kv.view(len(ids), -1, kv.shape[1]), lengths)

    def _as_memory(self, kv: Tensor, lengths: list[int]) -> KVCache:
        """A cache of the keys and values (sequences, slots, layers * 2 * kv_heads * d_head)."""
        heads, (sequences, slots, _) = self.crosses[0].heads, kv.shape
        kv = kv.view(sequences, slots, len(self.crosses), 2, heads.n_kv_heads, heads.d_head)
        # (2, layers, sequences, kv_heads, slots, d_head)
        kv = kv.permute(3, 2, 0, 4, 1, 5).contiguous()
        if heads.qk_norm:
            pairs = zip(self.crosses, kv[0], strict=True)
            kv[0] = torch.stack([cross.k_norm(keys) for cross, keys in pairs])
        mask = kv.new_full((1, 1, slots), -math.inf)
        memory = KVCache(kv, mask, lengths=torch.tensor(lengths, dtype=torch.int32))
        memory.fill(lengths)
        return memory


# By model and int8.
_packed_models: WeakKeyDictionary[Transformer, dict[bool, PackedModel]] = WeakKeyDictionary()


def encode_native(stack: PackedStack, step: NativeStep, sources: list[list[int]]) -> Tensor:
    """Encode all source tokens as rows that attend to their whole source.

    Returns (sources, slots, outputs of the step).
    """
    lengths = list(map(len, sources))
    rows, longest = prompt_rows(lengths, causal=False), max(lengths)
    assert longest <= (stack.positions.limit or longest), "a source is longer than max_len"
    ids = torch.tensor(list(chain(*sources)))
    cache = KVCache.empty(stack, len(sources), longest)
    outputs = step(ids, rows, cache)  # (tokens, outputs)
    if min(lengths) == longest:
        return pad(outputs.view(len(sources), longest, -1), (0, 0, 0, -longest % SLOT_MULTIPLE))
    padded = outputs.new_zeros(len(sources), round_up(longest), step.outputs)
    padded[rows[SEQUENCE].long(), rows[SLOT].long()] = outputs
    return padded


def right_padded(rows: list[list[int]]) -> list[list[int]]:
    """Rows padded on the right with 0 to one length."""
    longest = max(map(len, rows))
    return [row + [0] * (longest - len(row)) for row in rows]


def right_padding_mask(lengths: list[int], device: torch.device) -> Tensor | None:
    """The attention mask of rows padded on the right, (rows, longest); None: no padding."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]


def cross_attention(block: CrossBlock) -> CrossAttention:
    cross = block.cross.branch
    assert isinstance(cross, CrossAttention)
    return cross
