"""The task of language: predict each token of a text from those before it.

In: ids of a text, in windows. Out: for each step a batch and its loss; for each validation the surprise at the whole held-out
text, in nats per token, perplexity and bits per byte. Told in docs/language-models.md, "Training".
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from qkv.data.batches import collate
from qkv.data.windows import Windows
from qkv.evaluate.text_perplexity import TextPerplexity, documents_perplexity, text_perplexity
from qkv.messages import _
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.special_tokens import NOT_STORED, SpecialTokenIds
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import GenerateRecipe
from qkv.train.task import Final, new_model

NOBODY = -1  # beside the last target of a shorter row; no vocabulary has it
PROMPT = 24  # characters of the held-out text that the card's example goes on from


@dataclass(frozen=True)
class HeldOut:
    """The text that is measured and never learned from."""

    ids: np.ndarray
    bytes: int


@dataclass(frozen=True)
class Start:
    """A model to go on from; `model` is None when a resumed run brings its own weights."""

    spec: Spec
    model: Transformer | None
    special_tokens: SpecialTokenIds = NOT_STORED  # of its folder


@dataclass(frozen=True)
class WindowBatch:
    """At each place the model reads `given` and should say `asked`; NOBODY is asked where a row has ended."""

    given: Tensor  # (batch, length)
    asked: Tensor  # (batch, length)


class Generation:
    """What the loop asks of a task: batches, losses, validation."""

    goal: str | None = None  # the loss
    prelude = 0

    def __init__(
        self,
        recipe: GenerateRecipe,
        windows: Windows,
        valid: HeldOut,
        tokenizer: Tokenizer,
        start: Start,
    ):
        self.recipe, self.windows, self.valid, self.tokenizer, self.start = (
            recipe,
            windows,
            valid,
            tokenizer,
            start,
        )
        assert tokenizer.eos_id is not None
        self.eos = tokenizer.eos_id

    @property
    def spec(self) -> Spec:
        return self.start.spec

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        return {"tokenizer": self.tokenizer}

    @property
    def metadata(self) -> dict[str, Any]:
        return {"generation": self.start.special_tokens}

    def begin(self) -> Transformer:
        """First weights, or those of the model to go on from."""
        return self.start.model or new_model(self)

    def batch(self, micro_step: int, rank: int = 0, world: int = 1) -> WindowBatch:
        """A micro-batch: a pure function of the recipe's seed and these numbers."""
        rows = self.windows.rows(micro_step, rank, world)
        return WindowBatch(
            collate([row[:-1] for row in rows], self.eos),
            collate([row[1:] for row in rows], NOBODY),
        )

    def sizes(self, batch: WindowBatch) -> tuple[int, int]:
        predicted = int(batch.asked.ne(NOBODY).sum())
        return predicted, predicted

    def loss(self, model: Transformer, batch: WindowBatch) -> Tensor:
        """The summed cross-entropy of all tokens, each predicted from the true ones before it."""
        device, real = model.embed.weight.device, batch.asked.ne(NOBODY)
        # Shorter rows are padded on the right, where the causal mask hides it; its own places are left out of the loss.
        stream = model.decode(batch.given.to(device))
        return model.loss(
            stream, batch.asked.to(device), None if bool(real.all()) else real.to(device)
        )

    def validate(self, model: Transformer) -> dict[str, Any]:
        """The whole held-out text, every token once, each with half a context or more before it."""
        found = self.measured(model)
        return {
            "loss": found.nats_per_token,
            "perplexity": found.value,
            "bits_per_byte": found.bits_per_byte,
        }

    def measured(self, model: Transformer) -> TextPerplexity:
        """Documents that are learned separately are measured separately: no token sees another document."""
        if self.recipe.separate_documents:
            return documents_perplexity(
                model, self.valid.ids, self.valid.bytes, self.recipe.context, self.eos
            )
        return text_perplexity(
            model, self.valid.ids, self.valid.bytes, self.recipe.context, first=self.eos
        )

    def _prompt(self, room: int) -> str:
        """The first words of the held-out text, as many as a model reads that has room for so many tokens."""
        words = (
            self.tokenizer.decode(self.valid.ids[: 2 * PROMPT].tolist())
            .strip()
            .split("\n")[0][:PROMPT]
        )
        while words and len(self.tokenizer.encode(words)) > room:
            words = words[:-1]
        return words

    def final(self, use: Any) -> Final:
        """The published model's figures on the held-out text, and how it goes on from the first words of it."""
        found = self.measured(use.model)
        prompt = self._prompt(use.context - len(use.begin))
        numbers = (
            f"{found.nats_per_token:.4f} nats/token  perplexity {found.value:.2f}  "
            f"{found.bits_per_byte:.4f} bits/byte"
        )
        options = {"max_new_tokens": 60, "temperature": 0.8, "top_k": 40, "seed": self.recipe.seed}
        return Final(
            data={
                _("tokens held out"): found.tokens,
                _("bytes held out"): found.bytes,
                _("vocabulary"): self.spec.vocab_size,
                _("context"): self.recipe.context,
            },
            scores={_("held out"): numbers},
            example=(prompt, use(prompt, **options)),
            options=options,
        )
