"""Small explorers: three families with random weights and a tokenizer trained on a few lines."""

from dataclasses import replace
from typing import Any

import torch

from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.explore.explored_model import ExploredModel
from qkv.explore.explorer import Explorer
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import (
    ALiBi,
    Attention,
    Gated,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Spec,
    Stack,
)
from qkv.model.transformer import Transformer
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

LINES = [
    "今天天气真好",
    "机器学习很有趣",
    "i love machine learning",
    "the weather is lower today",
    "<b>bold</b> & 😀",
]
TEXT = "今天 lower 😀"
SCORES_TO_RESIDUAL = ("scores", "mask", "softmax", "mixed", "joined", "output", "residual")  # kinds


def tokenizer(kind: str = "byte_bpe") -> Tokenizer:
    return train_tokenizer(kind, LINES, 330)


def specs(vocab: int) -> dict[str, Spec]:
    """The three families, and decoders with experts or latent attention."""
    heads = Attention(4, 2, 4)
    bert = encoder_only(vocab, 16, 2, 4, 24)
    return {
        "translator": replace(encoder_decoder(vocab, 16, 2, 4, 24, 0.0), max_len=64),
        "generator": replace(decoder_only(vocab, 16, 2, heads, Gated(24)), max_len=64),
        "embedder": replace(bert, max_len=64),
        "experts": replace(
            decoder_only(
                vocab,
                16,
                2,
                replace(heads, qk_norm=True),
                MixtureOfExperts(4, 2, Gated(8), shared_expert=Gated(8)),
            ),
            max_len=64,
        ),
        "latent": replace(
            decoder_only(vocab, 16, 2, LatentAttention(2, 6, 4, 4, 5), Gated(24)), max_len=64
        ),
        "no residual": replace(
            Spec(vocab, 16, None, Stack((Layer(heads, None, residual=False, repeat=2),), True)),
            max_len=64,
        ),
        "alibi": replace(
            decoder_only(vocab, 16, 2, heads, Gated(24)), positions=ALiBi(), max_len=64
        ),
    }


def build(spec: Spec, seed: int = 3) -> Transformer:
    """Weights large enough that heads differ; float64 for small tolerances."""
    torch.manual_seed(seed)
    model = Transformer(spec)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model.double().eval()


def explorer_of(spec: Spec, tokens: Tokenizer, **stored: Any) -> Explorer:
    model = build(spec)
    return Explorer(
        ExploredModel(
            LoadedModel(model, {"tokenizer": tokens}, metadata_of(model), **stored), "small"
        )
    )


def small(family: str, max_len: int = 64, **stored: Any) -> Explorer:
    tokens = tokenizer()
    return explorer_of(replace(specs(tokens.vocab_size)[family], max_len=max_len), tokens, **stored)
