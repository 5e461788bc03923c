"""Gemma: Llama's frame with GeGLU, embeddings times sqrt(d_model), and norms that multiply by 1 + w.

In: its config.json. Out: our spec, and back. The 1 is added when weights are read and taken away when they are written, so
nothing else has to know of it. Told in docs/convert.md, "Families".
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.llama import (
    ATTENTION,
    COPIES,
    FEED_FORWARD,
    FRAME,
    alike,
    frame,
    gated,
    heads,
    spare,
    write_dense,
)
from qkv.checkpoint.families.rotary import read_rotary
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import LmHead, Spec


class OnePlus(Row):
    """Their w is our 1 + w; in float32 at least, as they compute it. No bit is lost: w = (1 + w) - 1 is then exact."""

    def to_ours(self, theirs: list[Tensor]) -> list[Tensor]:
        return [one.to(torch.promote_types(one.dtype, torch.float32)) + 1 for one in theirs]

    def to_theirs(self, ours: list[Tensor]) -> list[Tensor]:
        return [one - 1 for one in ours]


ROWS = (
    [OnePlus(row.theirs, row.ours) if "norm" in row.theirs else row for row in FRAME]
    + ATTENTION
    + FEED_FORWARD
)


def read(config: Config) -> Spec:
    config.only(use_bidirectional_attention=False)
    bias, part = config.flag("attention_bias", False), gated(config)
    if not config.has("hidden_act") or part.activation == "gelu":
        part = replace(part, activation="gelu_tanh")  # the first releases say gelu and mean this
    spec = frame(
        config, alike(config, heads(config, bias=bias, out_bias=bias), part), read_rotary(config)
    )
    head = spec.head and LmHead(tied=config.flag("tie_word_embeddings", True))
    return replace(spec, head=head, scaled_embedding=True)


def write(spec: Spec) -> dict[str, Any] | None:
    config = write_dense(spec, "gemma", "Gemma")
    if config is not None and spec.decoder is not None:
        config |= {"attention_bias": spec.decoder.layers[0].mixer.bias}  # type: ignore[union-attr]
    return config


GEMMA = Family("gemma", lambda spec: ROWS, read, write, "model.", spare, COPIES)
