"""Greedy decoding: at every step the token with the highest probability.

In: source ids (batch, source), ending in <eos>. Out: target ids, sentence by sentence, batch-invariant. The loop is that of
generate/loop.py at temperature 0. Explained in docs/translation.md, "Decoding".
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
    real: Tensor | None,
    *,
    bos_id: int,
    eos_id: int,
    pad_id: int,
    max_len: int | Tensor,
    int8: bool = False,
) -> list[list[int]]:
    """The tokens of each sentence, without <bos>, with <eos> if it ended before `max_len`, (batch,) or one for all."""
    with eval_mode(model):
        limits = target_limits(model, max_len, source_ids).tolist()
        settings = GenerationConfig(
            temperature=0,
            seed=0,
            banned=suppressed_ids(bos_id, eos_id, pad_id),
            max_new_tokens=max(limits),
        )
        stepper, bounds = make_stepper(model, int8), Bounds(max(limits) + 1, (eos_id,))
        sources = source_rows(source_ids, real)
        return [
            draft.ids
            for draft in generate(
                stepper, [[bos_id]] * len(limits), settings, bounds, None, sources, limits
            )
        ]


def source_rows(source_ids: Tensor, real: Tensor | None) -> list[list[int]]:
    """The ids of each sentence without padding."""
    rows = source_ids.tolist()
    if real is None:
        return rows
    return [
        [id for id, is_token in zip(*pair, strict=True) if is_token]
        for pair in zip(rows, real.tolist(), strict=True)
    ]


def target_limits(model: Transformer, max_len: int | Tensor, source_ids: Tensor) -> Tensor:
    """The most tokens of each translation, (batch,): one number for all or each its own, at most what the model can count."""
    limits = torch.as_tensor(max_len, device=source_ids.device).expand(len(source_ids))
    assert model.decoder is not None and int(limits.min()) >= 1, (
        "every sentence needs room for a token"
    )
    return limits.clamp(max=model.decoder.limit) if model.decoder.limit else limits


def suppressed_ids(bos_id: int, eos_id: int, pad_id: int) -> tuple[int, ...]:
    """<bos> and <pad> are never generated, unless the vocabulary uses one of them as <eos>."""
    return tuple(token for token in (bos_id, pad_id) if token != eos_id)


def forced_log_probs(
    model: Transformer,
    source_ids: Tensor,
    real: Tensor | None,
    targets: Sequence[Sequence[int]],
    bos_id: int,
    suppressed_ids: Sequence[int] = (),
) -> list[list[float]]:
    """The log-probability of each token of `targets` given those before it, by one pass; suppressed tokens have none."""
    lengths = [len(target) for target in targets]
    ids = source_ids.new_full((len(targets), max(lengths)), bos_id)  # (batch, target)
    for row, target in zip(ids, targets, strict=True):
        row[: len(target)] = ids.new_tensor(target)
    with eval_mode(model):
        begun = torch.cat(
            [ids.new_full((len(ids), 1), bos_id), ids[:, :-1]], dim=1
        )  # padding at the end is not seen
        logits = model.logits(
            model.decode(begun, model.encode(source_ids, real))
        )  # (batch, target, vocab)
        logits[..., list(suppressed_ids)] = -math.inf
        gains = logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]  # (batch, target)
    return [row[:length] for row, length in zip(gains.tolist(), lengths, strict=True)]
