"""The protocol of a training task: model, batches, loss, validation.

translation.py, generation.py and embedding.py implement it. See docs/training.md, "Tasks".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from qkv.model.init import zero_init_residual
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import Recipe


@dataclass(frozen=True)
class FinalEvaluation:
    """The task's part of the model card, each table as name -> value."""

    data: Mapping[str, object]
    scores: Mapping[str, str]  # what was measured -> its lines
    example: tuple[str, str]  # an input of the model and its output
    options: Mapping[str, object] = field(default_factory=dict)  # generation options of the example


class Task(Protocol):
    """A training task.

    `metric` names the validation metric that selects the best model, larger is better; None: the
    loss, smaller is better. Early stopping does not count the first `pretraining_steps`.
    """

    metric: str | None

    @property
    def pretraining_steps(self) -> int: ...

    @property
    def recipe(self) -> Recipe: ...

    @property
    def spec(self) -> Spec:
        """The spec of the model to train."""
        ...

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """The tokenizers saved with the weights, by file name."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """Other files saved with the weights, as arguments of `stored_files`."""
        ...

    def initial_model(self) -> Transformer:
        """The model before the first step."""
        ...

    def batch(self, micro_step: int, rank: int = 0, world_size: int = 1) -> Any:
        """A micro-batch: a pure function of the recipe's seed and these numbers."""
        ...

    def sizes(self, batch: Any) -> tuple[int, int]:
        """The number of predictions summed in the loss, and of tokens without padding."""
        ...

    def loss(self, model: Transformer, batch: Any) -> Tensor:
        """The loss summed over all predictions of the batch."""
        ...

    def validate(self, model: Transformer) -> dict[str, Any]:
        """Metrics on held-out data: "loss", others by name, and "samples": lines to print."""
        ...

    def evaluate(self, pipeline: Callable[..., Any]) -> FinalEvaluation:
        """Evaluate the published model on held-out data; `pipeline` is what `qkv.load` returns."""
        ...


def new_model(task: Task) -> Transformer:
    """A model with random initial weights."""
    model = Transformer(task.spec)
    if task.recipe.zero_init_residual:
        zero_init_residual(model)
    return model
