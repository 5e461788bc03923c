"""Read the fields of a Hugging Face config.json, each with a check; unsupported values are errors.

See docs/guides/import-export.md, "config.json".
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from qkv.checkpoint.names import Fields
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import Activation, Attention, Layer, LmHead

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
MAX_SIZE = 1 << 24  # of vocabularies and widths: a false config must not start a huge allocation
MAX_LAYERS = 4_096


@dataclass(frozen=True)
class Config:
    """The fields of a config.json, or of an object in it."""

    where: object
    fields: Fields
    weights: Iterable[str] = ()  # names: the config does not describe every head

    def positive_int(self, name: str, default: int | None = None, maximum: int = MAX_SIZE) -> int:
        value = self._get(name, default)
        if type(value) is not int or not 0 < value <= maximum:
            right = _("use an integer from 1 to {maximum:,}", maximum=maximum)
            raise self.error(name, value, right)
        return value

    def optional_int(self, name: str) -> int | None:
        return self.positive_int(name) if self.has(name) else None

    def n_layers(self, name: str) -> int:
        return self.positive_int(name, maximum=MAX_LAYERS)

    def positive_float(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:
            raise self.error(name, value, _("use a positive number"))
        return float(value)

    def probability(self, name: str, default: float) -> float:
        """A probability of dropout."""
        value = self._get(name, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise self.error(name, value, _("use a number from 0 to 1"))
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, _("use true or false"))
        return value

    def activation(self, name: str, default: str) -> Activation:
        value = self._get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.error(name, value, _("use one of {names}", names=", ".join(ACTIVATIONS)))
        return ACTIVATIONS[value]

    def table(self, name: str) -> "Config | None":
        """An object in the config; None if there is none."""
        value = self.fields.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, value, _("use an object"))
        return Config(f"{self.where}, {name}", value)

    def require(self, **known: Any) -> None:
        """Require these fields to be absent, null or equal: other values are not supported."""
        for name, value in known.items():
            found = self.fields.get(name)
            if found is not None and found != value:
                raise self.error(name, found, _("only {value!r} can be imported", value=value))

    def has(self, name: str) -> bool:
        return self.fields.get(name) is not None

    def lm_head(self, tied: bool) -> LmHead | None:
        """A language modeling head, `tied` by default; None for a base model."""
        return None if self.is_base_model() else LmHead(self.flag("tie_word_embeddings", tied))

    def is_base_model(self) -> bool:
        """Whether this is a base model without a language modeling head: ["LlamaModel"]."""
        names = self.fields.get("architectures")
        name = str(names[0]) if isinstance(names, list) and names else ""
        return name.endswith("Model") and "LMHead" not in name and "MTModel" not in name

    def error(self, name: str, value: Any, right: str) -> QkvError:
        text = repr(value)
        text = text if len(text) < 80 else text[:77] + "..."
        return QkvError(f"{self.where}, {name}", _("cannot be {value}", value=text), right)

    def _get(self, name: str, default: Any) -> Any:
        """The value of a field; a default of None: the field is required."""
        value = self.fields.get(name)
        value = default if value is None else value
        if value is None:
            right = _("is this the model's config.json?")
            raise QkvError(f"{self.where}, {name}", _("is missing"), right)
        return value


def biased_attention(n_heads: int, d_model: int) -> Attention:
    """Multi-head attention with biases and d_head = d_model / n_heads, as in GPT-2 and BERT."""
    return Attention(n_heads, n_heads, max(1, d_model // n_heads), bias=True, out_bias=True)


def huggingface_activation(activation: Activation) -> str:
    """The first Hugging Face name of an activation."""
    return next(name for name, native in ACTIVATIONS.items() if native == activation)


def group_layers(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Merge consecutive equal layers into one with `repeat`."""
    return tuple(replace(layer, repeat=len(list(group))) for layer, group in groupby(layers))
