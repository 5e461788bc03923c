"""Parameter groups: which weights decay, which do not, and which Muon updates.

See docs/guides/training.md, "Learning rate, optimizer and batch size".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from qkv.messages import _
from qkv.model.spec import Spec
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, Recipe, TranslateRecipe


@dataclass(frozen=True)
class ParameterGroup:
    """Weights with the same optimizer and weight decay, by name."""

    optimizer: str  # muon, adamw or adam
    weight_decay: float
    weights: Mapping[str, Tensor]

    @property
    def n_parameters(self) -> int:
        return sum(weight.numel() for weight in self.weights.values())

    @property
    def patterns(self) -> list[str]:
        """The names with `*` in place of the numbers of layers and experts and of the stack."""
        general = (re.sub(r"\b\d+\b|^(en|de)coder(?=\.layers)", "*", name) for name in self.weights)
        return list(dict.fromkeys(general))

    @property
    def title(self) -> str:
        decay, none = _("weight decay {decay:g}", decay=self.weight_decay), _("no weight decay")
        return f"{self.optimizer}, {decay if self.weight_decay else none}"

    @property
    def counts(self) -> str:
        return _(
            "{n_tensors:,} tensors, {n_parameters:,} parameters",
            n_tensors=len(self.weights),
            n_parameters=self.n_parameters,
        )


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[ParameterGroup]:
    """The matrices of the layers decay, or are updated by Muon; embeddings, norms, biases do not.

    With muon, tensors of more than two axes have AdamW without weight decay.
    """
    named = dict(model.named_parameters())
    matrices = {
        name: weight for name, weight in named.items() if weight.ndim >= 2 and ".layers." in name
    }
    others = {name: weight for name, weight in named.items() if name not in matrices}
    if recipe.optimizer == "muon":
        flat = {name: weight for name, weight in matrices.items() if weight.ndim == 2}
        others |= {name: weight for name, weight in matrices.items() if weight.ndim > 2}
        return [
            ParameterGroup("muon", recipe.weight_decay, flat),
            ParameterGroup("adamw", 0.0, others),
        ]
    return [
        ParameterGroup(recipe.optimizer, recipe.weight_decay, matrices),
        ParameterGroup(recipe.optimizer, 0.0, others),
    ]


def group_counts(model: nn.Module, recipe: Recipe) -> dict[str, str]:
    """For the model card: title -> tensors and parameters of each group."""
    return {group.title: group.counts for group in merged_groups(model, recipe)}


def merged_groups(model: nn.Module, recipe: Recipe) -> list[ParameterGroup]:
    """The groups to show: without empty ones, and one for the same optimizer and weight decay."""
    merged: dict[tuple[str, float], ParameterGroup] = {}
    for group in filter(lambda group: group.weights, parameter_groups(model, recipe)):
        key = group.optimizer, group.weight_decay
        known = merged[key].weights if key in merged else {}
        merged[key] = ParameterGroup(*key, {**known, **group.weights})
    return list(merged.values())


def planned_groups(recipe: Recipe) -> list[ParameterGroup]:
    """The groups of the model that a recipe describes, before its tokenizer is trained.

    None with `init_from`: the model is then that of the folder.
    """
    if isinstance(recipe, GenerateRecipe) and recipe.init_from:
        return []
    from qkv.checkpoint.weights import meta_model

    return merged_groups(meta_model(planned_spec(recipe)), recipe)


def planned_spec(recipe: Any) -> Spec:
    """The spec with vocabularies of the size that the recipe asks for."""
    from qkv.train.task_specs import embedding_spec, generation_spec, translation_spec

    match recipe:
        case TranslateRecipe():
            source = None if recipe.shared_vocab else recipe.vocab_size
            return translation_spec(recipe.model, recipe.vocab_size, source)
        case EmbedRecipe():
            return embedding_spec(recipe.model, recipe.vocab_size, recipe.mlm_steps > 0)
    return generation_spec(recipe.model, recipe.vocab_size, recipe.context_length)
