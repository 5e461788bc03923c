"""Tiny decoder-only models with random weights, in float64."""

import torch

from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer

KINDS = {
    "rotary": (s.Attention(4, 2, 4), s.Rotary()),
    "learned": (s.Attention(2, 2, 8, bias=True, out_bias=True), s.Learned()),
    "window": (s.Attention(4, 4, 4, window=4), s.Rotary()),
    "sinusoidal": (s.Attention(4, 4, 4), s.Sinusoidal()),
    "alibi": (s.Attention(4, 2, 4), s.ALiBi()),
    "lstm": (s.Recurrent("lstm"), s.NoPositions()),
    "experts": (s.Attention(4, 2, 4), s.Rotary()),
}


def make(
    kind: str = "rotary", vocab: int = 23, max_len: int = 24, seed: int = 0, layers: int = 2
) -> Transformer:
    """A decoder with weights large enough for generated sequences to differ."""
    mixer, positions = KINDS[kind]
    ff: s.FeedForward = s.MixtureOfExperts(4, 2, s.Gated(12)) if kind == "experts" else s.Gated(20)
    spec = decoder_only(vocab, 16, layers, mixer, ff)
    torch.manual_seed(seed)
    model = (
        Transformer(s.Spec(**{**vars(spec), "positions": positions, "max_len": max_len}))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model
