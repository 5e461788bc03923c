"""Looking ahead: the int8 view of a model guesses some tokens, and the model itself reads them all at once.

In: a fast step for a single row, and what would be said for given logits. Out: a step with the very same logits, sooner:
reading the weights is what takes the time, and one reading serves every guess that was right (speculative decoding,
Leviathan et al. 2023, with the same model as the draft). Told in docs/performance.md, "Looking ahead".
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from qkv.engine.packed_model import FastModel, FastStepper
from qkv.engine.prompt_stepper import FastPromptStepper

LARGE = 1 << 23     # weights; of fewer, int8 is hardly faster
FIRST, MOST = 4, 7  # guesses at a time: at the start, and at most
REST = 8            # tokens without a guess after one alone was wrong

Step = Callable[[Tensor], Tensor]  # (rows,) newest tokens -> (rows, vocab) logits of the next
# Logits (1, vocab) and how many tokens after the next one they are for -> that token, (1,); None: nothing would follow it.
Foresee = Callable[[Tensor, int], Tensor | None]


class Ahead:
    """Tokens that may come, each with the logits after it; they wait until the row says them, or something else."""

    def __init__(self, stepper: FastStepper | FastPromptStepper, foresee: Foresee):
        self.stepper, self.foresee, self.guesses = stepper, foresee, FIRST
        self.cells, self.ready = stepper.cells, list[tuple[int, Tensor]]()

    @cached_property
    def draft(self) -> FastModel:
        """Made when it is first needed: the first token of a text need not wait for it."""
        return FastModel.of(self.stepper.model, int8=True)

    def step(self, ids: Tensor) -> Tensor:
        """(1,) newest token -> (1, vocab) logits of the next."""
        if self.cells is not self.stepper.cells:  # another prompt was read
            self.cells, self.ready = self.stepper.cells, []
        if self.ready and self.ready[0][0] != int(ids):  # a wrong guess
            self.guesses, self.ready = self.guesses - 1 if self.guesses > 1 else -REST, []
        self.ready = self.ready or self._look(ids)
        logits = self.ready.pop(0)[1]
        if not self.ready:                               # all were right
            self.guesses = min(MOST, self.guesses + 1)
        self.cells.take(1)
        self.stepper.place += 1
        return logits

    def _look(self, ids: Tensor) -> list[tuple[int, Tensor]]:
        """The newest token and the guesses after it; what the guessing leaves in the cache is overwritten."""
        place, used, memory, tokens = self.stepper.place, self.cells.used, self.stepper.memory, [ids]
        assert isinstance(place, int), "a single row has no padding"
        while len(tokens) <= self.guesses:
            ahead = len(tokens) - 1
            token = self.foresee(self.draft.step(tokens[-1], place + ahead, self.cells, memory), ahead)
            if token is None:
                break
            tokens.append(token)
        self.cells.used = used
        chain = torch.cat(tokens)
        logits = self.stepper.fast.chain(chain, place, self.cells, memory)          # (tokens, vocab)
        return list(zip(chain.tolist(), logits.split(1), strict=True))


def looking_ahead(stepper: object, foresee: Foresee) -> Step | None:
    """The step of a stepper that has begun, if looking ahead pays and changes no digit: a single row of a large model, by the native library."""
    if not isinstance(stepper, FastStepper | FastPromptStepper) or stepper.int8 or stepper.cells.all.shape[2] > 1:
        return None
    native = stepper.fast.native
    return Ahead(stepper, foresee).step if native is not None and native.size >= LARGE else None
