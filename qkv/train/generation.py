"""Generation task: causal language modeling on windows of text.

Validation measures the loss, perplexity and bits per byte of the held-out text. See
docs/guides/training.md, "Training".
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
from qkv.train.task import FinalEvaluation, Task, with_mask

IGNORE_INDEX = -1  # target at padding; no vocabulary has it
PROMPT_CHARACTERS = 24  # length of the card's prompt, from the held-out text


@dataclass(frozen=True)
class HeldOut:
    """The held-out text."""

    ids: np.ndarray
    bytes: int


@dataclass(frozen=True)
class InitialModel:
    """The model to start from; `model` is None for random weights and for a resumed run."""

    spec: Spec
    model: Transformer | None = None
    special_tokens: SpecialTokenIds = NOT_STORED  # of its folder


@dataclass(frozen=True)
class WindowBatch:
    """Input ids and the next token of each position; IGNORE_INDEX at padding."""

    inputs: Tensor  # (batch, length)
    targets: Tensor  # (batch, length)


@dataclass(eq=False)
class GenerationTask(Task):
    """Training of a causal language model on windows of text."""

    recipe: GenerateRecipe
    windows: Windows
    valid: HeldOut
    tokenizer: Tokenizer  # must have <eos>
    initial: InitialModel

    def __post_init__(self) -> None:
        self.tokenizers, self.spec = {"tokenizer": self.tokenizer}, self.initial.spec
        self.metadata = {"generation": self.initial.special_tokens}
        assert self.tokenizer.eos_id is not None
        self.eos = self.tokenizer.eos_id

    def initial_model(self) -> Transformer:
        """A new model, or the one of `init_from`."""
        return self.initial.model or super().initial_model()

    def batch(self, micro_step: int) -> WindowBatch:
        rows = self.windows.rows(micro_step)
        return WindowBatch(
            collate([row[:-1] for row in rows], self.eos),
            collate([row[1:] for row in rows], IGNORE_INDEX),
        )

    def sizes(self, batch: WindowBatch) -> tuple[int, int]:
        predicted = int(batch.targets.ne(IGNORE_INDEX).sum())
        return predicted, predicted

    def loss(self, model: Transformer, batch: WindowBatch) -> Tensor:
        """The summed cross-entropy of all tokens, each predicted from the tokens before it."""
        device = model.embed.weight.device
        # Padding is on the right, where the causal mask hides it; it is excluded from the loss.
        stream = model.decode(batch.inputs.to(device))
        loss = model.loss(stream, *with_mask(batch.targets, IGNORE_INDEX, device))
        self.measured = {"cross_entropy": loss.detach()}
        return loss

    def validate(self, model: Transformer) -> dict[str, Any]:
        """Loss, perplexity and bits per byte of the whole held-out text."""
        perplexity = self.held_out_perplexity(model)
        return {
            "loss": perplexity.nats_per_token,
            "perplexity": perplexity.value,
            "bits_per_byte": perplexity.bits_per_byte,
        }

    def held_out_perplexity(self, model: Transformer) -> TextPerplexity:
        """Each token is predicted once, from at least half a context where the text is long enough.

        With `separate_documents` no token attends to another document.
        """
        text = model, self.valid.ids, self.valid.bytes, self.recipe.context_length
        if self.recipe.separate_documents:
            return documents_perplexity(*text, self.eos)
        return text_perplexity(*text, bos_id=self.eos)

    def _prompt(self, max_tokens: int) -> str:
        """The beginning of the held-out text, at most `max_tokens` tokens."""
        text = self.tokenizer.decode(self.valid.ids[: 2 * PROMPT_CHARACTERS].tolist())
        prompt = text.strip().split("\n")[0][:PROMPT_CHARACTERS]
        while prompt and len(self.tokenizer.encode(prompt)) > max_tokens:
            prompt = prompt[:-1]
        return prompt

    def evaluation_tokens(self) -> tuple[float, float]:
        """Each token is in two windows, in a validation and in the final evaluation."""
        n_tokens = 2 * len(self.valid.ids) / 3
        return n_tokens, n_tokens

    def evaluate(self, pipeline: Any) -> FinalEvaluation:
        """Perplexity of the held-out text, and a continuation of its beginning."""
        perplexity = self.held_out_perplexity(pipeline.model)
        prompt = self._prompt(pipeline.context_length - len(pipeline.begin))
        numbers = (
            f"{perplexity.nats_per_token:.4f} nats/token  perplexity {perplexity.value:.2f}  "
            f"{perplexity.bits_per_byte:.4f} bits/byte"
        )
        options = {"max_new_tokens": 60, "temperature": 0.8, "top_k": 40, "seed": self.recipe.seed}
        return FinalEvaluation(
            data={
                _("tokens held out"): perplexity.tokens,
                _("bytes held out"): perplexity.bytes,
                _("vocabulary"): self.spec.vocab_size,
                _("context length"): self.recipe.context_length,
            },
            scores={_("held out"): numbers},
            example=(prompt, pipeline(prompt, **options)),
            options=options,
        )
