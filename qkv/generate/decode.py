"""Greedy decoding: at every step the likeliest token.

In: source ids (batch, source), ending in <eos>. Out: target ids, sentence by sentence, each the same alone and in
company. Told in docs/translation.md, "Decoding".
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.engine.speculative import looking_ahead
from qkv.engine.step import as_limits, decode_threads, make_stepper, never_said
from qkv.kernels.topk import best_token
from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer

LEAVE_SHARE = 0.25  # of the rows: so many must have ended before copying the others' cache pays


def greedy(
    model: Transformer, source_ids: Tensor, real: Tensor | None, *,
    bos_id: int, eos_id: int, pad_id: int, max_len: int | Tensor, int8: bool = False,
) -> list[list[int]]:
    """The tokens of each sentence, without <bos>, with <eos> if it ended before `max_len`, (batch,) or one for all."""
    with eval_mode(model):
        stepper, limits = make_stepper(model, source_ids, real, int8), as_limits(model, max_len, source_ids).tolist()
        forbidden = never_said(source_ids, bos_id, eos_id, pad_id)
        said: list[list[int]] = [[] for _ in limits]
        where, ids = list(range(len(limits))), source_ids.new_full((len(limits),), bos_id)  # the sentence of each row
        going = set(where)

        def choose(logits: Tensor) -> Tensor:
            return best_token(logits.index_fill_(1, forbidden, -math.inf))              # (rows,)

        def foresee(logits: Tensor, ahead: int) -> Tensor | None:
            token = choose(logits)
            return None if int(token) == eos_id or len(said[0]) + ahead + 1 >= limits[0] else token

        step = looking_ahead(stepper, foresee) or stepper.step
        with decode_threads(stepper):
            while going:
                ids = choose(step(ids))
                for n, token in zip(where, ids.tolist(), strict=True):
                    if n in going:
                        said[n].append(token)
                        if token == eos_id or len(said[n]) == limits[n]:
                            going.remove(n)
                if 0 < len(going) <= (1 - LEAVE_SHARE) * len(where):
                    stay = ids.new_tensor([row for row, n in enumerate(where) if n in going])
                    stepper.keep(stay, stay)
                    where, ids = [n for n in where if n in going], ids[stay]
        return said


def up_to(ids: list[int], eos_id: int) -> list[int]:
    """The ids as far as the first <eos>: up_to([7, 8, 2, 2], 2) == [7, 8, 2]."""
    return ids[: ids.index(eos_id) + 1] if eos_id in ids else ids


def forced_log_probs(
    model: Transformer, source_ids: Tensor, real: Tensor | None, targets: Sequence[Sequence[int]], bos_id: int,
    suppressed_ids: Sequence[int] = (),
) -> list[list[float]]:
    """The log-probability of each token of `targets` given those before it, by one pass; suppressed tokens have none."""
    lengths = [len(target) for target in targets]
    ids = source_ids.new_full((len(targets), max(lengths)), bos_id)                     # (batch, target)
    for row, target in zip(ids, targets, strict=True):
        row[: len(target)] = ids.new_tensor(target)
    with eval_mode(model):
        begun = torch.cat([ids.new_full((len(ids), 1), bos_id), ids[:, :-1]], dim=1)    # padding at the end is not seen
        logits = model.logits(model.decode(begun, model.encode(source_ids, real)))      # (batch, target, vocab)
        logits[..., list(suppressed_ids)] = -math.inf
        gains = logits.log_softmax(dim=-1).gather(2, ids[..., None])[..., 0]            # (batch, target)
    return [row[:length] for row, length in zip(gains.tolist(), lengths, strict=True)]
