"""The protocol of a training task: model, batches, loss, validation.

translation.py, generation.py and embedding.py implement it.
See docs/explanation/training.md, "Tasks and the training loop".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from qkv.checkpoint.weights import meta_model
from qkv.memory import check_memory
from qkv.messages import _
from qkv.model.check_spec import custom_parts
from qkv.model.init import zero_init_residual
from qkv.model.spec import Spec
from qkv.model.transformer import Transformer
from qkv.plan.cost import parameters
from qkv.text.tokenizer import Tokenizer
from qkv.train.recipe import Recipe

Table = Mapping[str, object]  # name -> value
Pipeline = Any  # what `qkv.load` returns


@dataclass(frozen=True)
class FinalEvaluation:
    """The task's part of the model card, each table as name -> value."""

    data: Table
    scores: Mapping[str, str]  # what was measured -> its lines
    example: tuple[str, str]  # an input of the model and its output
    options: Table = field(default_factory=dict)  # generation options of the example
    n_pairs: int = 0  # of the training files, held-out ones included, if they are held out


class Task(Protocol):
    """A training task.

    `metric` names the validation metric that selects the best model, larger is better; None: the
    loss, smaller is better. Early stopping does not count the first `pretraining_steps`.
    """

    recipe: Recipe
    spec: Spec  # of the model to train
    tokenizers: dict[str, Tokenizer]  # saved with the weights, by file name
    metadata: dict[str, Any]  # other files saved with the weights, as arguments of `stored_files`
    # After `loss`: quantities that validations measure too, by name, summed over the predictions.
    measured: Mapping[str, Tensor] = MappingProxyType({})
    metric: str | None = None
    pretraining_steps: int = 0

    def initial_model(self) -> Transformer:
        """The model before the first step; here one with random weights."""
        check_training_memory(self.spec, self.recipe.device)
        model = Transformer(self.spec)
        if self.recipe.zero_init_residual:
            zero_init_residual(model)
        return model

    def batch(self, micro_step: int) -> Any:
        """A micro-batch: a pure function of the recipe's seed and the number."""

    def sizes(self, batch: Any) -> tuple[int, int]:
        """The number of predictions summed in the loss, and of tokens without padding."""

    def loss(self, model: Transformer, batch: Any) -> Tensor:
        """The loss summed over all predictions of the batch."""

    def validate(self, model: Transformer) -> dict[str, Any]:
        """Metrics on held-out data: "loss", others by name, and "samples": lines to print."""

    def evaluation_tokens(self) -> tuple[float, float]:
        """How many training tokens take about as long as a validation and as `evaluate`.

        A forward pass takes a third of a training step with as many tokens.
        """
        return 0.0, 0.0

    def evaluate(self, pipeline: Pipeline) -> FinalEvaluation:
        """Evaluate the published model on held-out data; `pipeline` is what `qkv.load` returns."""


def add_means(means: dict[str, float], sums: Mapping[str, Tensor], predicted: int) -> None:
    """Add the part of a micro-batch to the means over all predictions of a step."""
    for name, value in sums.items():
        means[name] = means.get(name, 0.0) + float(value) / predicted


def check_training_memory(spec: Spec, device: str) -> None:
    """Raise an error if weights, gradients and Adam's two moments do not fit, in float32.

    For another device, only the weights are in the memory of the CPU.
    """
    if custom_parts(spec):
        n_parameters = sum(weight.numel() for weight in meta_model(spec).parameters())
    else:
        n_parameters = sum(parameters(spec).values())
    needed = 4 * n_parameters * (4 if device == "cpu" else 1)
    check_memory("model", needed, _("use smaller sizes; qkv plan shows what they cost"))


def with_mask(ids: Tensor, pad: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The ids on the device and their attention mask, None without padding."""
    attention_mask = ids.ne(pad)
    return ids.to(device), None if bool(attention_mask.all()) else attention_mask.to(device)
