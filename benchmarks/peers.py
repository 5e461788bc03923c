"""Models of the same sizes in other libraries, used as in their documentation."""

import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SIZES = {  # layers per stack, d_model, heads, d_ff, dropout: as qkv's presets
    "tiny": (4, 128, 4, 256, 0.3),
    "small": (3, 512, 8, 2_048, 0.1),
}
VOCAB, PAD = 10_000, 0


def marian(size: str) -> nn.Module:
    """transformers' Marian."""
    from transformers import MarianConfig, MarianMTModel

    layers, d_model, heads, d_ff, dropout = SIZES[size]
    return MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB,
            d_model=d_model,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            dropout=dropout,
            attention_dropout=0.0,
            activation_dropout=0.0,
            activation_function="relu",
            pad_token_id=PAD,
            eos_token_id=3,
            decoder_start_token_id=2,
            scale_embedding=True,
            max_position_embeddings=512,
        )
    )


def marian_loss(
    model: nn.Module, source: torch.Tensor, target_in: torch.Tensor, target_out: torch.Tensor
) -> torch.Tensor:
    logits = model(
        input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target_in
    ).logits
    return F.cross_entropy(
        logits.flatten(0, 1), target_out.flatten(), ignore_index=PAD, label_smoothing=0.1
    )


def gpt2(vocab_size: int, max_len: int, layers: int, d_model: int, heads: int) -> nn.Module:
    """transformers' GPT-2 without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_positions": max_len, "n_embd": d_model, "n_layer": layers, "n_head": heads}
    return GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, **sizes, **dropout))


def llama(
    vocab_size: int, layers: int, d_model: int, heads: int, d_ff: int, **options: Any
) -> nn.Module:
    """transformers' Llama; `options` are further fields of its configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": vocab_size, "hidden_size": d_model, "intermediate_size": d_ff}
    counts = {"num_hidden_layers": layers, "num_attention_heads": heads}
    return LlamaForCausalLM(LlamaConfig(**sizes, **counts, **options))


def next_token_loss(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def generated(model: Any, ids: torch.Tensor, new_tokens: int, **options: Any) -> torch.Tensor:
    """The output of transformers' generate, without sampling."""
    mask = torch.ones_like(ids)
    with torch.inference_mode():
        return model.generate(
            ids, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, **options
        )


def ctranslate2_spec(folder: Path) -> Any:
    """The model of a Hugging Face folder in CTranslate2's format, without a vocabulary."""
    from qkv.checkpoint.ctranslate2.spec import ctranslate2_model
    from qkv.checkpoint.huggingface.reader import load_huggingface

    loaded = load_huggingface(folder).model
    weights = {name: weight.float().numpy().copy() for name, weight in loaded.state_dict().items()}
    return ctranslate2_model(loaded.spec, weights)


def save_ctranslate2(exported: Any, folder: Path) -> None:
    exported.validate()
    exported.optimize()
    folder.mkdir()
    exported.save(str(folder))


class TorchTransformer(nn.Module):
    """torch.nn.Transformer with embeddings, sinusoidal positions and a tied head."""

    def __init__(self, size: str):
        super().__init__()
        layers, d_model, heads, d_ff, dropout = SIZES[size]
        self.embed = nn.Embedding(VOCAB, d_model)
        self.dropout = nn.Dropout(dropout)
        self.core = nn.Transformer(d_model, heads, layers, layers, d_ff, dropout, batch_first=True)
        angles = torch.arange(512)[:, None] * torch.exp(
            torch.arange(0, d_model, 2) * (-math.log(10_000.0) / d_model)
        )
        self.register_buffer(
            "sinusoids", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False
        )

    def embedded(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dropout(
            self.embed(ids) * self.embed.embedding_dim**0.5 + self.sinusoids[: ids.shape[1]]
        )

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        causal_mask = nn.Transformer.generate_square_subsequent_mask(target_in.shape[1])
        padding_mask = source == PAD
        states = self.core(
            self.embedded(source),
            self.embedded(target_in),
            tgt_mask=causal_mask,
            tgt_is_causal=True,
            src_key_padding_mask=padding_mask,
            memory_key_padding_mask=padding_mask,
        )
        return F.linear(states, self.embed.weight)


def torch_loss(
    model: nn.Module, source: torch.Tensor, target_in: torch.Tensor, target_out: torch.Tensor
) -> torch.Tensor:
    logits = model(source, target_in)
    return F.cross_entropy(
        logits.flatten(0, 1), target_out.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
