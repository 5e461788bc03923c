"""What the loop asks of a task: its model, its batches, its loss, its validation.

In: nothing; translation.py, generation.py and embedding.py each hold one task. Out: the protocol they share, so that
there is one loop for all of them. Told in docs/training.md, "Tasks".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from qkv.model.init import calm_start
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import Recipe


@dataclass(frozen=True)
class Final:
    """What a card tells at the end of a run, each table as name -> value."""

    data: Mapping[str, object]
    scores: Mapping[str, str]  # what was measured -> its lines
    example: tuple[str, str]  # what the model was given, and what it made of it
    options: Mapping[str, object] = field(default_factory=dict)  # with which settings it did


class Task(Protocol):
    """One kind of learning; `goal` names the figure of a validation that should be high, None: the loss, low.

    In the first `prelude` steps something else is learned than the goal: patience begins after them.
    """

    goal: str | None

    @property
    def prelude(self) -> int: ...

    @property
    def recipe(self) -> Recipe: ...

    @property
    def spec(self) -> Spec:
        """The model to train."""
        ...

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """As they are saved beside the weights."""
        ...

    @property
    def metadata(self) -> dict[str, Any]:
        """What else is saved beside them: arguments of `stored_files`, such as {"pooling": PoolingConfig(...)}."""
        ...

    def begin(self) -> Transformer:
        """The model before the first step."""
        ...

    def batch(self, micro_step: int, rank: int = 0, world: int = 1) -> Any:
        """A micro-batch: a pure function of the recipe's seed and these numbers."""
        ...

    def sizes(self, batch: Any) -> tuple[int, int]:
        """How many predictions its loss sums up, and how many real tokens it reads."""
        ...

    def loss(self, model: Transformer, batch: Any) -> Tensor:
        """Summed over all predictions of the batch."""
        ...

    def validate(self, model: Transformer) -> dict[str, Any]:
        """Figures on held-out data: "loss", others by name, and "samples": a few lines for people."""
        ...

    def final(self, use: Callable[..., Any]) -> Final:
        """The last word on the published model; `use` is what `qkv.load` gives."""
        ...


def new_model(task: Task) -> Transformer:
    """A model with first weights, as the recipe wants them."""
    model = Transformer(task.spec)
    if task.recipe.calm_start:
        calm_start(model)
    return model
