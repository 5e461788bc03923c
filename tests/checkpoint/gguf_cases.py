"""Models and tokenizers for the GGUF tests: every supported architecture and option."""

import json
from dataclasses import replace
from typing import Any

import torch

from qkv.checkpoint.loaded_model import LoadedModel, metadata_of
from qkv.model import spec as s
from qkv.model.presets import decoder_only
from qkv.model.transformer import Transformer
from qkv.text.tiktoken_format import PATTERNS
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = [
    "The cat sat on the mat.",
    "我们在 2024 年学习 attention，it's fun!",
    "  spaces\n\nand lines\t",
    "naïve café 🙂 e\u0301",
]
BYTES = train_tokenizer("byte_bpe", TEXTS, 300)
SIZE = BYTES.vocab_size


def decoder(
    attention: s.Attention = s.Attention(4, 2, 8),
    feed_forward: s.FeedForward = s.Gated(48),
    **options: Any,
) -> s.Spec:
    return replace(decoder_only(SIZE, 32, 2, attention, feed_forward), max_len=64, **options)


def gpt2_like(
    attention: s.Attention, feed_forward: s.Dense, positions: s.Positions = s.Learned()
) -> s.Spec:
    stack = s.Stack((s.Layer(attention, feed_forward, repeat=2),), causal=True, final_norm=True)
    return s.Spec(SIZE, 32, None, stack, positions, max_len=64)


LLAMA3 = s.LlamaScaling(8.0, 1.0, 4.0, 16)
SPECS = {
    "llama": (decoder(), "llama"),
    "llama with attention dropout": (decoder(s.Attention(4, 2, 8, dropout=0.1)), "llama"),
    "llama tied, one key head": (decoder(s.Attention(4, 1, 8), head=s.LmHead(True)), "llama"),
    "llama with wide heads": (decoder(s.Attention(2, 2, 24)), "llama"),
    "llama with biases": (
        decoder(s.Attention(4, 2, 8, bias=True, out_bias=True), s.Gated(48, "silu", True)),
        "llama",
    ),
    "interleaved rotary": (decoder(positions=s.Rotary(5e5, interleaved=True)), "llama"),
    "llama 3": (decoder(positions=s.Rotary(5e5, scaling=LLAMA3)), "llama"),
    "linear scaling": (decoder(positions=s.Rotary(scaling=s.LinearScaling(2.0))), "llama"),
    "scaled embedding, tied": (decoder(scaled_embedding=True, head=s.LmHead(True)), "llama"),
    "mixtral": (decoder(feed_forward=s.MixtureOfExperts(4, 2, s.Gated(24))), "llama"),
    "a window as long as the context": (decoder(s.Attention(4, 2, 8, window=64)), "llama"),
    "qwen 2": (decoder(s.Attention(4, 2, 8, bias=True)), "qwen2"),
    "qwen 3": (decoder(s.Attention(4, 2, 16, qk_norm=True)), "qwen3"),
    "gemma": (
        decoder(
            s.Attention(4, 1, 16),
            s.Gated(48, "gelu_tanh"),
            scaled_embedding=True,
            head=s.LmHead(True),
        ),
        "gemma",
    ),
    "gpt 2": (
        gpt2_like(s.Attention(4, 4, 8, bias=True, out_bias=True), s.Dense(128, "gelu_tanh", True)),
        "gpt2",
    ),
    "gpt 2 without biases": (gpt2_like(s.Attention(4, 4, 8), s.Dense(40, "gelu_tanh")), "gpt2"),
}


def loaded(spec: s.Spec, tokenizer: Tokenizer = BYTES, **stored: Any) -> LoadedModel:
    """A random model in which every weight affects the output."""
    torch.manual_seed(3)
    model = Transformer(spec).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(
                torch.randn_like(weight) * (0.3 if weight.ndim == 1 else weight.shape[-1] ** -0.5)
                + (weight.ndim == 1)
            )
    return LoadedModel(model, {"tokenizer": tokenizer}, metadata_of(model), **stored)


def like_llama_3(tokenizer: Tokenizer) -> Tokenizer:
    """A byte-level tokenizer with the pre-tokenizer of Llama 3."""
    rules = json.loads(tokenizer.core.to_str())
    rules["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": PATTERNS["cl100k"]},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    }
    rules["model"]["ignore_merges"] = True
    return Tokenizer.from_json(json.dumps(rules))
