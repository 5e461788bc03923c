"""A foreign config.json, read field by field: it is data, and what we cannot honour is refused by name.

In: the JSON of a folder and the names of its weights. Out: whole numbers, numbers, words and flags, checked.
Told in docs/convert.md, "config.json".
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import Activation, Heads, Layer

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
REQUIRED: Any = object()
MOST = (
    1 << 24
)  # no vocabulary, width or count of today comes near; a lying file shall not make us build for hours
MOST_LAYERS = 4_096


class Config:
    """The fields of a config.json, or of a table in it."""

    def __init__(self, where: object, fields: dict[str, Any], weights: Iterable[str] = ()):
        self.where, self.fields = where, fields
        self.weights = frozenset(weights)  # names, where the config alone does not tell

    def whole(self, name: str, default: Any = REQUIRED, most: int = MOST) -> int:
        """A positive whole number."""
        value = self._get(name, default)
        if type(value) is not int or not 0 < value <= most:
            raise self.wrong(name, value, _("a whole number from 1 to {most:,}", most=most))
        return value

    def layers(self, name: str) -> int:
        return self.whole(name, most=MOST_LAYERS)

    def number(self, name: str, default: Any = REQUIRED) -> float:
        """A positive number."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.wrong(name, value, _("a positive number"))
        return float(value)

    def share(self, name: str, default: float) -> float:
        """A dropout probability; where there is none, 0."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise self.wrong(name, value, _("a number from 0 to 1"))
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true / false")
        return value

    def activation(self, name: str, default: str) -> Activation:
        value = self._get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.wrong(name, value, _("we know ") + ", ".join(ACTIVATIONS))
        return ACTIVATIONS[value]

    def table(self, name: str) -> "Config | None":
        """A table within the config; None where there is none."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, _("a table"))
        return Config(f"{self.where}, {name}", value)

    def only(self, **known: Any) -> None:
        """Fields that change what is computed in a way we do not follow: absent, null, or as here."""
        for name, value in known.items():
            found = self.fields.get(name)
            if found is not None and found != value:
                raise self.wrong(name, found, _("only {value!r} can be imported", value=value))

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def is_bare(self) -> bool:
        """Whether this is the model without a way to the vocabulary: architectures is ["LlamaModel"] or the like."""
        names = self.fields.get("architectures")
        return (
            isinstance(names, list)
            and bool(names)
            and str(names[0]).endswith("Model")
            and "LMHead" not in str(names[0])
            and "MTModel" not in str(names[0])
        )

    def wrong(self, name: str, value: Any, right: str) -> QkvError:
        shown = repr(value)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        return QkvError(f"{self.where}, {name}", _("cannot be {shown}", shown=shown), right)

    def _get(self, name: str, default: Any) -> Any:
        value = self.fields.get(name)
        if value is None and default is REQUIRED:
            raise QkvError(
                f"{self.where}, {name}", _("is missing"), _("is this the model's own config?")
            )
        return default if value is None else value


def biased_heads(n_heads: int, d_model: int) -> Heads:
    """Multi-head attention as in 2017 to 2019: biases everywhere, heads of d_model / n_heads."""
    return Heads(n_heads, n_heads, max(1, d_model // n_heads), bias=True, out_bias=True)


def their_activation(ours: Activation) -> str:
    """Their word for an activation: the first that means ours."""
    return next(theirs for theirs, one in ACTIVATIONS.items() if one == ours)


def grouped(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers one by one -> layers alike in a row written once, with how often they repeat."""
    return tuple(replace(layer, repeat=len(list(group))) for layer, group in groupby(layers))
