"""Speculative decoding: the int8 weights of a model draft tokens, one step verifies them.

The logits are those of plain decode steps to the last bit. Reading the weights takes most of a
step, and one read serves every accepted draft token (Leviathan et al. 2023, with the quantized
model itself as the draft model). See docs/explanation/performance.md.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from qkv.engine.kv_cache import SEQUENCE, SLOT, prompt_rows
from qkv.engine.packed_model import PackedModel
from qkv.engine.stepper import PackedStepper

MIN_WEIGHTS = 1 << 23  # of a model: int8 is not much faster for smaller ones
INITIAL_DRAFT_TOKENS, MAX_DRAFT_TOKENS = 4, 7
PAUSE_STEPS = 8  # steps without a draft after a draft of one token was rejected

Step = Callable[[Tensor], Tensor]  # (rows,) new tokens -> (rows, vocab) logits of the next
# Logits (1, vocab) and the number of tokens after the next one -> that token, (1,); None: the
# sequence would end with it.
Choose = Callable[[Tensor, int], Tensor | None]


class SpeculativeDecoding:
    """A queue of draft tokens, each with the verified logits after it."""

    def __init__(self, stepper: PackedStepper, choose: Choose):
        self.stepper, self.choose, self.n_draft = stepper, choose, INITIAL_DRAFT_TOKENS
        self.cache, self.verified = stepper.cache, list[tuple[int, Tensor]]()

    @cached_property
    def draft_model(self) -> PackedModel:
        """Packed when first needed, so that the first token does not wait for it."""
        return PackedModel.of(self.stepper.model, int8=True)

    def step(self, ids: Tensor) -> Tensor:
        """(1,) new token -> (1, vocab) logits of the next."""
        if self.cache is not self.stepper.cache:  # another prompt was prefilled
            self.cache, self.verified = self.stepper.cache, []
        if self.verified and self.verified[0][0] != int(ids):  # rejected
            self.n_draft = self.n_draft - 1 if self.n_draft > 1 else -PAUSE_STEPS
            self.verified = []
        self.verified = self.verified or self._verify(ids)
        logits = self.verified.pop(0)[1]
        if not self.verified:  # all were accepted
            self.n_draft = min(MAX_DRAFT_TOKENS, self.n_draft + 1)
        self.cache.used += 1
        self.stepper.rows[SLOT:] += 1
        return logits

    def _verify(self, ids: Tensor) -> list[tuple[int, Tensor]]:
        """The new token and the draft after it, each with the logits of the model.

        The keys and values of the draft model are overwritten.
        """
        stepper, used, tokens = self.stepper, self.cache.used, [ids]
        draft_rows = stepper.rows.clone()
        while len(tokens) <= self.n_draft:
            logits = self.draft_model.step(tokens[-1], draft_rows, self.cache, stepper.memory)
            token = self.choose(logits, len(tokens) - 1)
            if token is None:
                break
            tokens.append(token)
        self.cache.used = used
        self.cache.reserve(len(tokens))
        draft, rows = torch.cat(tokens), prompt_rows([len(tokens)])
        rows[SLOT:] += stepper.rows[SLOT, 0]
        assert stepper.packed.native is not None and int(stepper.rows[SEQUENCE, 0]) == 0
        logits = stepper.packed.native(draft, rows, self.cache, stepper.memory)  # (tokens, vocab)
        return list(zip(draft.tolist(), logits.split(1), strict=True))


def speculative_step(stepper: object, choose: Choose) -> Step | None:
    """The step after a prefill where speculative decoding is faster; else None.

    It is for a single row of a large model on the native path.
    """
    if not isinstance(stepper, PackedStepper) or stepper.int8 or len(stepper.rows[0]) > 1:
        return None
    native = stepper.packed.native
    if native is None or native.size < MIN_WEIGHTS:
        return None
    return SpeculativeDecoding(stepper, choose).step
