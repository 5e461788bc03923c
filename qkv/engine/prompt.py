"""One step of writing: the last token of each row in, the scores of the next one out.

In: prompts as ids, then one id per row and step. Out: logits (rows, vocab). Whoever writes sees the model only through
this seam, so that a faster stepper changes no text. Told in docs/generation.md, "From prompt to text".
"""

from typing import Protocol

from torch import Tensor

from qkv.engine.int8 import no_int8
from qkv.engine.padding import left_padded
from qkv.engine.prompt_stepper import FastPromptStepper, can_prompt_fast
from qkv.model.transformer import Transformer


class PromptStepper(Protocol):
    """Rows are texts that grow; what a row is told depends on its own tokens only, never on its neighbours'."""

    def read(self, prompts: list[list[int]]) -> Tensor:
        """Forget all, read these prompts (one token or more, lengths may differ) -> (rows, vocab) logits after each."""
        ...

    def step(self, ids: Tensor) -> Tensor:
        """(rows,) newest tokens -> (rows, vocab) logits of the next, which the caller may overwrite."""
        ...

    def keep(self, rows: Tensor) -> None:
        """New row i goes on from old row rows[i]: rows are dropped, reordered or repeated."""
        ...


class CachedPromptStepper:
    """The plain way: the model's own decode, with its cache; short prompts are padded on the left."""

    def __init__(self, model: Transformer):
        self.model, self.cache = model, model.new_cache()

    def read(self, prompts: list[list[int]]) -> Tensor:
        self.cache = self.model.new_cache()
        ids, real = left_padded(prompts, self.model.embed.weight.device)
        stream = self.model.decode(ids, cache=self.cache, real=real)      # (rows, longest, d_model)
        return self.model.logits(stream[:, -1])                           # (rows, vocab)

    def step(self, ids: Tensor) -> Tensor:
        stream = self.model.decode(ids[:, None], cache=self.cache)        # (rows, 1, d_model)
        return self.model.logits(stream[:, 0])                            # (rows, vocab)

    def keep(self, rows: Tensor) -> None:
        self.cache.keep(rows)


def make_prompt_stepper(model: Transformer, int8: bool = False) -> PromptStepper:
    """A stepper for this model, fast where it can be; `int8` makes its matrices small, which only a fast one can."""
    if can_prompt_fast(model, int8):
        return FastPromptStepper(model, int8)
    if int8:
        raise no_int8()
    return CachedPromptStepper(model)
