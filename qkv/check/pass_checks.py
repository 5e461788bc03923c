"""Checks of forward passes: causality, KV cache, padding, batch invariance, fused attention."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from qkv.check.checked_model import (
    CheckedModel,
    TokenBatch,
    encode_source,
    final_states,
    relative_difference,
    unpadded_row,
)
from qkv.check.result import CheckResult, compared
from qkv.messages import _
from qkv.model.eager_core import eager_attention, sdpa_cores
from qkv.model.transformer import Transformer

__all__ = ["later_tokens_have_no_effect"]


def later_tokens_have_no_effect(checked: CheckedModel) -> CheckResult:
    spec, length = checked.model.spec, min(16, checked.max_length)
    stack = spec.decoder or spec.encoder
    assert stack is not None
    if not stack.causal:
        return CheckResult(None, _("attention is bidirectional, as in model.json"))
    first_row = torch.zeros(length, dtype=torch.long, device=checked.device)
    batch = checked.random_batch(1, length).reorder(first_row)
    # Row r: the tokens after position r.
    later = torch.ones(length, length, dtype=torch.bool, device=checked.device).triu(1)
    changed = batch.ids.where(~later, (batch.ids + 1) % spec.vocab_size)
    before = final_states(checked.model, batch)  # (length, length, d_model)
    after = final_states(checked.model, replace(batch, ids=changed))
    change = (after - before).abs().amax(dim=-1).masked_fill(later, 0.0)  # (length, length)
    change /= before.abs().max().clamp(min=1e-30)
    position = int((change > checked.tolerance).any(dim=0).int().argmax())
    condition = _("token {position} changes when only later tokens change", position=position)
    return compared(checked, [(condition, float(change.max()))])


def cache_has_no_effect(checked: CheckedModel) -> CheckResult:
    stack = checked.model.spec.decoder
    if stack is None or not stack.causal:
        return CheckResult(None, _("there is no causal decoder"))
    batch = checked.random_batch(3, checked.max_length)
    shorter = checked.random_batch(3, checked.max_length - checked.extra_padding)
    padded = checked.padded(shorter, "left", pad_id=0)
    batches = {_("without padding"): batch, _("padding on the left"): padded}
    differences = (
        (condition, difference)
        for condition, batch in batches.items()
        for difference in cache_differences(checked.model, batch)
    )
    return compared(checked, differences)


def cache_differences(model: Transformer, batch: TokenBatch) -> Iterator[float]:
    """Decode in chunks with the cache, reorder the rows halfway, and compare with full passes."""
    rows = torch.tensor([2, 0, 0], device=batch.ids.device)
    cuts = [cut for cut in (3, 6, 7, 67, 68, 69) if cut < batch.ids.shape[1]]
    cache, memory, full = model.new_cache(), encode_source(model, batch), final_states(model, batch)
    for index, (start, end) in enumerate(pairwise([0, *cuts, None])):
        if index and index == len(cuts) // 2:
            cache.reorder(rows)
            batch, memory = batch.reorder(rows), None if memory is None else memory.reorder(rows)
            full = final_states(model, batch)
        chunk = slice(start, end)
        mask = None if batch.attention_mask is None else batch.attention_mask[:, chunk]
        states = model.decode(batch.ids[:, chunk], memory, cache, mask)
        tokens = slice(None) if mask is None else mask  # states of padding are not compared
        if mask is None or mask.any():
            yield relative_difference(states[tokens], full[:, chunk][tokens])


def padding_has_no_effect(checked: CheckedModel) -> CheckResult:
    spec, differences = checked.model.spec, []
    last_id = min(spec.vocab_size, spec.source_vocab_size or spec.vocab_size) - 1
    others = padded_batches(checked, last_id)
    for condition, batch in padded_batches(checked).items():
        a, b = (final_states(checked.model, padded) for padded in (batch, others[condition]))
        if not (a.isfinite().all() and b.isfinite().all()):
            return CheckResult(False, _("{condition}: NaN or infinity", condition=condition))
        mask = batch.attention_mask
        differences.append((condition, relative_difference(a[mask], b[mask])))
    return compared(checked, differences)


def batch_has_no_effect(checked: CheckedModel) -> CheckResult:
    differences = []
    for condition, batch in padded_batches(checked).items():
        assert batch.attention_mask is not None
        for row, states in enumerate(final_states(checked.model, batch)):
            single = final_states(checked.model, unpadded_row(batch, row))[0]
            tokens = states[batch.attention_mask[row]]
            differences.append((condition, relative_difference(tokens, single)))
    return compared(checked, differences)


def fused_attention_equals_eager(checked: CheckedModel) -> CheckResult:
    if not sdpa_cores(checked.model):
        return CheckResult(None, _("there is no fused attention"))
    batches = {_("without padding"): short_batch(checked), **padded_batches(checked)}
    fused = [states_of_tokens(checked.model, batch) for batch in batches.values()]
    with eager_attention(checked.model):
        eager = [states_of_tokens(checked.model, batch) for batch in batches.values()]
    return compared(checked, zip(batches, map(relative_difference, fused, eager), strict=True))


def states_of_tokens(model: Transformer, batch: TokenBatch) -> Tensor:
    """The final states without those of padding, whose values have no meaning."""
    states = final_states(model, batch)
    return states if batch.attention_mask is None else states[batch.attention_mask]


def short_batch(checked: CheckedModel) -> TokenBatch:
    return checked.random_batch(3, min(12, checked.max_length - checked.extra_padding))


def padded_batches(checked: CheckedModel, pad_id: int = 0) -> dict[str, TokenBatch]:
    """A short batch padded on the left and on the right."""
    sides = {_("padding on the left"): "left", _("padding on the right"): "right"}
    batch = short_batch(checked)
    return {condition: checked.padded(batch, side, pad_id) for condition, side in sides.items()}
