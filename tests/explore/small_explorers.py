"""Small explorers for the tests: three families with random weights and a tokenizer learned on a few lines."""

from dataclasses import replace
from typing import Any

import torch

from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.explore.explorer import Explorer
from qkv.explore.subject import Subject
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.spec import Experts, Gated, Heads, Latent, Spec
from qkv.model.transformer import Transformer
from qkv.text.learn import learn
from qkv.text.tokenizer import Tokenizer

LINES = [
    "今天天气真好",
    "机器学习很有趣",
    "i love machine learning",
    "the weather is lower today",
    "<b>bold</b> & 😀",
]
TEXT = "今天 lower 😀"


def tokenizer(kind: str = "bytes") -> Tokenizer:
    return learn(kind, LINES, 330)


def specs(vocab: int) -> dict[str, Spec]:
    """The three families, and decoders with other parts."""
    heads = Heads(4, 2, 4)
    bert = encoder_only(vocab, 16, 2, 4, 24)
    return {
        "translator": replace(encoder_decoder(vocab, 16, 2, 4, 24, 0.0), max_len=64),
        "generator": replace(decoder_only(vocab, 16, 2, heads, Gated(24)), max_len=64),
        "embedder": replace(bert, max_len=64),
        "experts": replace(
            decoder_only(
                vocab, 16, 2, replace(heads, qk_norm=True), Experts(4, 2, Gated(8), shared=Gated(8))
            ),
            max_len=64,
        ),
        "latent": replace(decoder_only(vocab, 16, 2, Latent(2, 6, 4, 4, 5), Gated(24)), max_len=64),
    }


def build(spec: Spec, seed: int = 3) -> Transformer:
    """Weights large enough that heads differ; float64, so that agreement can be asked for closely."""
    torch.manual_seed(seed)
    model = Transformer(spec)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return model.double().eval()


def explorer_of(spec: Spec, tokens: Tokenizer, **stored: Any) -> Explorer:
    model = build(spec)
    return Explorer(
        Subject(LoadedModel(model, {"tokenizer": tokens}, metadata_of(model), **stored), "small")
    )


def small(family: str, max_len: int = 64, **stored: Any) -> Explorer:
    tokens = tokenizer()
    return explorer_of(replace(specs(tokens.vocab_size)[family], max_len=max_len), tokens, **stored)
