"""Gemma: config.json and tensor names.

Llama with GeGLU, embeddings times sqrt(d_model) and RMSNorm with unit offset, x * (1 + w): the 1 is
added on import and subtracted on export. See docs/convert.md, "Families".
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.llama import (
    ATTENTION,
    COMMON,
    FEED_FORWARD,
    TIED,
    attention,
    decoder_spec,
    gated,
    ignored,
    uniform_layers,
    write_dense,
)
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import LmHead, Spec


class UnitOffset(Row):
    """The foreign w is the native 1 + w, in at least float32: then w = (1 + w) - 1 is exact."""

    def to_native(self, tensors: list[Tensor]) -> list[Tensor]:
        return [w.to(torch.promote_types(w.dtype, torch.float32)) + 1 for w in tensors]

    def to_foreign(self, tensors: list[Tensor]) -> list[Tensor]:
        return [w - 1 for w in tensors]


ROWS = (
    [UnitOffset(row.foreign, row.native) if "norm" in row.foreign else row for row in COMMON]
    + ATTENTION
    + FEED_FORWARD
)


def read(config: Config) -> Spec:
    config.require(use_bidirectional_attention=False)
    bias, feed_forward = config.flag("attention_bias", False), gated(config)
    if not config.has("hidden_act") or feed_forward.activation == "gelu":
        # The first releases have "gelu" in the config and compute the tanh approximation.
        feed_forward = replace(feed_forward, activation="gelu_tanh")
    spec = decoder_spec(
        config,
        uniform_layers(config, attention(config, bias=bias, out_bias=bias), feed_forward),
        read_rotary(config),
    )
    head = spec.head and LmHead(tied=config.flag("tie_word_embeddings", True))
    return replace(spec, head=head, scaled_embedding=True)


def write(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "gemma", "Gemma")
    if config is not None and spec.decoder is not None:
        config |= {"attention_bias": spec.decoder.layers[0].mixer.bias}  # type: ignore[union-attr]
    return config


GEMMA = Family("gemma", lambda spec: ROWS, read, write, "model.", ignored, TIED)
