"""Gemma: config.json and tensor names.

Llama with GeGLU, embeddings times sqrt(d_model) and RMSNorm with unit offset, x * (1 + w): the 1 is
added on import and subtracted on export. See docs/guides/import-export.md, "Families".
"""

from dataclasses import replace

import torch

from qkv.checkpoint.families import llama
from qkv.checkpoint.families.config import Config
from qkv.checkpoint.names import Row, Tensors
from qkv.model.spec import Spec


class UnitOffset(Row):
    """The foreign w is the native 1 + w, in at least float32: then w = (1 + w) - 1 is exact."""

    def to_native(self, tensors: Tensors) -> Tensors:
        return [w.to(torch.promote_types(w.dtype, torch.float32)) + 1 for w in tensors]

    def to_foreign(self, tensors: Tensors) -> Tensors:
        return [w - 1 for w in tensors]


def rows(spec: Spec) -> list[Row]:
    return [
        UnitOffset(row.foreign, row.native) if "norm" in row.foreign else row
        for row in llama.rows(spec)
    ]


def read(config: Config) -> Spec:
    config.require(use_bidirectional_attention=False)
    mixer, feed_forward = llama.biased_if_set(config), llama.gated(config)
    if not config.has("hidden_act") or feed_forward.activation == "gelu":
        # The first releases have "gelu" in the config and compute the tanh approximation.
        feed_forward = replace(feed_forward, activation="gelu_tanh")
    layers = llama.uniform_layers(config, mixer, feed_forward)
    return replace(llama.decoder_spec(config, layers, tied=True), scaled_embedding=True)


GEMMA = llama.decoder_family(
    "Gemma", rows, read, lambda spec: llama.write_gated(spec, "attention_bias")
)
