"""Greedy decoding of translations, and log-probabilities of given targets.

Greedy decoding is the loop of generate/loop.py at temperature 0, batch-invariant.
See docs/translation.md, "Decoding".
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.engine.stepper import make_stepper
from qkv.generate.config import GenerationConfig
from qkv.generate.loop import Bounds, generate
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer


def greedy(
    model: Transformer,
    source_ids: Tensor,
    attention_mask: Tensor | None,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_target_len: int | Tensor,
    int8: bool = False,
) -> list[list[int]]:
    """Return the target ids of each sentence, without <bos>, with <eos> if it ended.

    Args:
        model: An encoder-decoder.
        source_ids: (batch, source), each row ending in <eos>.
        attention_mask: (batch, source), True for tokens; None: no padding.
        bos_id: The decoder's first input.
        eos_id: Ends a sentence.
        pad_id: Never generated, like `bos_id`.
        max_target_len: Maximum target tokens, <eos> included: one for all, or (batch,).
        int8: Use int8-quantized weights.
    """
    with eval_mode(model):
        limits = target_limits(model, max_target_len, source_ids).tolist()
        config = GenerationConfig(
            temperature=0,
            seed=0,
            suppress_tokens=suppressed_ids(bos_id, eos_id, pad_id),
            max_new_tokens=max(limits),
        )
        stepper, bounds = make_stepper(model, int8), Bounds(max(limits) + 1, (eos_id,))
        sources, prompts = source_rows(source_ids, attention_mask), [[bos_id]] * len(limits)
        sequences = generate(stepper, prompts, config, bounds, None, sources, limits)
        return [sequence.ids for sequence in sequences]


def source_rows(source_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """The ids of each sentence without padding."""
    rows = source_ids.tolist()
    if attention_mask is None:
        return rows
    return [
        [id for id, is_token in zip(*pair, strict=True) if is_token]
        for pair in zip(rows, attention_mask.tolist(), strict=True)
    ]


def target_limits(model: Transformer, max_target_len: int | Tensor, source_ids: Tensor) -> Tensor:
    """Maximum target tokens of each sentence, (batch,), at most the model's maximum positions."""
    limits = torch.as_tensor(max_target_len, device=source_ids.device).expand(len(source_ids))
    assert model.decoder is not None and int(limits.min()) >= 1, "max_target_len must be at least 1"
    return limits.clamp(max=model.decoder.limit) if model.decoder.limit else limits


def suppressed_ids(bos_id: int, eos_id: int, pad_id: int) -> tuple[int, ...]:
    """<bos> and <pad> are never generated, unless the vocabulary uses one of them as <eos>."""
    return tuple(token for token in (bos_id, pad_id) if token != eos_id)


def forced_log_probs(
    model: Transformer,
    source_ids: Tensor,
    attention_mask: Tensor | None,
    targets: Sequence[Sequence[int]],
    bos_id: int,
    suppressed_ids: Sequence[int] = (),
) -> list[list[float]]:
    """The log-probability of each target token given those before it, in one forced pass.

    Suppressed tokens have probability 0.
    """
    lengths = [len(target) for target in targets]
    ids = source_ids.new_full((len(targets), max(lengths)), bos_id)  # (batch, target)
    for row, target in zip(ids, targets, strict=True):
        row[: len(target)] = ids.new_tensor(target)
    with eval_mode(model):
        # Padding at the end is masked for all earlier positions by the causal mask.
        decoder_ids = torch.cat([ids.new_full((len(ids), 1), bos_id), ids[:, :-1]], dim=1)
        memory = model.encode(source_ids, attention_mask)
        logits = model.logits(model.decode(decoder_ids, memory))  # (batch, target, vocab)
        logits[..., list(suppressed_ids)] = -math.inf
        log_probs = logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]  # (batch, target)
    return [row[:length] for row, length in zip(log_probs.tolist(), lengths, strict=True)]
