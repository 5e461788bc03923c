"""Speculative decoding: the int8 weights of a model draft some tokens, and the model verifies them in one step.

In: a packed stepper with a single row, and what would be chosen for given logits. Out: a step with the same logits to the
last bit, in less time: reading the weights takes most of a step, and one reading serves every accepted draft token
(Leviathan et al. 2023, with the model itself as the draft). Explained in docs/performance.md, "Speculative decoding".
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from qkv.engine.kv_cache import SEQUENCE, SLOT, prompt_rows
from qkv.engine.packed_model import PackedModel
from qkv.engine.stepper import PackedStepper

MIN_WEIGHTS = 1 << 23  # of a smaller model int8 is hardly faster
FIRST_DRAFT_TOKENS, MAX_DRAFT_TOKENS = 4, 7
REST_STEPS = 8  # without a draft, after a draft of one token was wrong

Step = Callable[[Tensor], Tensor]  # (rows,) newest tokens -> (rows, vocab) logits of the next
# Logits (1, vocab) and how many tokens after the next one they are for -> that token, (1,); None: nothing would follow it.
Choose = Callable[[Tensor, int], Tensor | None]


class SpeculativeDecoding:
    """Draft tokens, each with the verified logits after it, until the caller chooses them or others."""

    def __init__(self, stepper: PackedStepper, choose: Choose):
        self.stepper, self.choose, self.n_draft = stepper, choose, FIRST_DRAFT_TOKENS
        self.cache, self.ready = stepper.cache, list[tuple[int, Tensor]]()

    @cached_property
    def draft(self) -> PackedModel:
        """Packed when it is first needed: the first token of a text need not wait for it."""
        return PackedModel.of(self.stepper.model, int8=True)

    def step(self, ids: Tensor) -> Tensor:
        """(1,) newest token -> (1, vocab) logits of the next."""
        if self.cache is not self.stepper.cache:  # another prompt was read
            self.cache, self.ready = self.stepper.cache, []
        if self.ready and self.ready[0][0] != int(ids):  # rejected
            self.n_draft, self.ready = self.n_draft - 1 if self.n_draft > 1 else -REST_STEPS, []
        self.ready = self.ready or self._verify(ids)
        logits = self.ready.pop(0)[1]
        if not self.ready:  # all were accepted
            self.n_draft = min(MAX_DRAFT_TOKENS, self.n_draft + 1)
        self.cache.used += 1
        self.stepper.rows[SLOT:] += 1
        return logits

    def _verify(self, ids: Tensor) -> list[tuple[int, Tensor]]:
        """The newest token and the draft after it; the keys and values of the draft model are overwritten."""
        stepper, used, tokens, rows = (
            self.stepper,
            self.cache.used,
            [ids],
            self.stepper.rows.clone(),
        )
        while len(tokens) <= self.n_draft:
            token = self.choose(
                self.draft.step(tokens[-1], rows, self.cache, stepper.memory), len(tokens) - 1
            )
            if token is None:
                break
            tokens.append(token)
        self.cache.used = used
        self.cache.reserve(len(tokens))
        chain, rows = torch.cat(tokens), prompt_rows([len(tokens)])
        rows[SLOT:] += stepper.rows[SLOT, 0]
        assert stepper.packed.native is not None and int(stepper.rows[SEQUENCE, 0]) == 0
        logits = stepper.packed.native(chain, rows, self.cache, stepper.memory)  # (tokens, vocab)
        return list(zip(chain.tolist(), logits.split(1), strict=True))


def speculative_step(stepper: object, choose: Choose) -> Step | None:
    """The step of a stepper after its prefill, where a draft saves time: a single row of a large model on the native path."""
    if not isinstance(stepper, PackedStepper) or stepper.int8 or len(stepper.rows[0]) > 1:
        return None
    native = stepper.packed.native
    return (
        SpeculativeDecoding(stepper, choose).step
        if native is not None and native.size >= MIN_WEIGHTS
        else None
    )
