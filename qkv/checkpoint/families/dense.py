"""Layers of attention with biases and a dense feed-forward, in config.json: GPT-2, BERT, Marian.

The families differ in the names of the fields. See docs/guides/import-export.md, "config.json".
"""

from dataclasses import replace
from typing import NamedTuple

from qkv.checkpoint.families.config import Config, biased_attention, huggingface_activation
from qkv.checkpoint.names import Fields, NotExpressible
from qkv.model.spec import Attention, Dense, Layer, Norm, Spec, Stack


class DenseFields(NamedTuple):
    """The names of the fields."""

    d_model: str
    max_len: str
    dropout: str
    n_layers: str
    n_heads: str
    d_ff: str
    activation: str
    eps: str | None = None

    def read_layer(
        self,
        config: Config,
        norm: Norm,
        d_ff: int | None = None,
        activation: str = "gelu",
        cross: bool = False,
    ) -> Layer:
        """The repeated layer; `norm`, `d_ff` and `activation` are defaults."""
        d_model, n_heads = config.positive_int(self.d_model), config.positive_int(self.n_heads)
        mixer = biased_attention(n_heads, d_model)
        feed_forward = Dense(
            config.positive_int(self.d_ff, d_ff),
            config.activation(self.activation, activation),
            bias=True,
        )
        n_layers = config.n_layers(self.n_layers)
        if self.eps:
            norm = replace(norm, eps=config.positive_float(self.eps, norm.eps))
        return Layer(mixer, feed_forward, norm, mixer if cross else None, n_layers)

    def read_sizes(self, config: Config) -> Fields:
        """The fields of the spec outside its layers."""
        return {
            "vocab_size": config.positive_int("vocab_size"),
            "d_model": config.positive_int(self.d_model),
            "max_len": config.positive_int(self.max_len),
            "dropout": config.probability(self.dropout, 0.1),
        }

    def write(self, spec: Spec, stack: Stack | None) -> Fields:
        """The fields of a spec with this stack; an error if its layers are of another kind."""
        match stack:
            case Stack(layers=(Layer(Attention(n_heads), Dense(d_ff, activation), norm), *_)):
                return {
                    "vocab_size": spec.vocab_size,
                    self.d_model: spec.d_model,
                    self.max_len: spec.max_len,
                    self.dropout: spec.dropout,
                    self.n_layers: len(stack.each_layer()),
                    self.n_heads: n_heads,
                    self.d_ff: d_ff,
                    self.activation: huggingface_activation(activation),
                    **({self.eps: norm.eps} if self.eps else {}),
                }
        raise NotExpressible
