"""Marian (OPUS-MT) and BART: config.json and tensor names.

Post-norm encoder-decoder models; Marian has sinusoidal positions, BART learned ones from index 2.
See docs/convert.md, "Families".
"""

from dataclasses import replace
from typing import Any

from qkv.checkpoint.families.config import (
    Config,
    biased_attention,
    group_layers,
    huggingface_activation,
)
from qkv.checkpoint.names import Family, Row, RowVector
from qkv.model.spec import (
    Attention,
    Dense,
    Layer,
    Learned,
    LmHead,
    Norm,
    Positions,
    Sinusoidal,
    Spec,
    Stack,
)

SIDES: tuple[tuple[str, bool], ...] = (("encoder", False), ("decoder", True))
PARTS = {
    "self_attn.q_proj": "attn.branch.q_proj",
    "self_attn.k_proj": "attn.branch.k_proj",
    "self_attn.v_proj": "attn.branch.v_proj",
    "self_attn.out_proj": "attn.branch.o_proj",
    "self_attn_layer_norm": "attn.norm",
    "encoder_attn.q_proj": "cross.branch.q_proj",
    "encoder_attn.k_proj": "cross.branch.k_proj",
    "encoder_attn.v_proj": "cross.branch.v_proj",
    "encoder_attn.out_proj": "cross.branch.o_proj",
    "encoder_attn_layer_norm": "cross.norm",
    "fc1": "ffn.branch.up_proj",
    "fc2": "ffn.branch.down_proj",
    "final_layer_norm": "ffn.norm",
}
BODY = [
    *(
        Row(f"model.{side}.layers.{{i}}.{foreign}.{{p}}", f"{side}.layers.{{i}}.{native}.{{p}}")
        for side in ("encoder", "decoder")
        for foreign, native in PARTS.items()
    ),
    *(
        Row(f"model.{side}.embed_positions.{{p}}", f"{side}.positions.{{p}}")
        for side in ("encoder", "decoder")
    ),
    *(
        Row(f"model.{side}.layernorm_embedding.{{p}}", f"{side}.embed_norm.{{p}}")
        for side in ("encoder", "decoder")
    ),
]
TIED = {
    "model.encoder.embed_tokens.weight": ("model.shared.weight",),
    "model.decoder.embed_tokens.weight": ("model.shared.weight",),
    "lm_head.weight": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
}


def rows(spec: Spec) -> list[Row]:
    tables = (
        [Row("model.shared.{p}", "embed.{p}")]
        if spec.source_vocab_size is None
        else [
            Row("model.decoder.embed_tokens.{p}", "embed.{p}"),
            Row("model.encoder.embed_tokens.{p}", "source_embed.{p}"),
        ]
    )
    return [*tables, *BODY, RowVector("final_logits_bias", "lm_head.{p}")]


def read(config: Config, positions: Positions, embed_norm: bool) -> Spec:
    """The fields common to Marian and BART."""
    encoder, decoder = (
        Stack(
            group_layers([side_layer(config, side)] * config.n_layers(f"{side}_layers")),
            causal,
            embed_norm=embed_norm,
        )
        for side, causal in SIDES
    )
    head = None if config.is_base_model() else LmHead(tied=True, bias=True)
    return Spec(
        config.positive_int("vocab_size"),
        config.positive_int("d_model"),
        encoder,
        decoder,
        positions,
        head,
        scaled_embedding=config.flag("scale_embedding", False),
        dropout=config.probability("dropout", 0.1),
        max_len=config.positive_int("max_position_embeddings"),
    )


def side_layer(config: Config, side: str) -> Layer:
    n_heads, d_model = (
        config.positive_int(f"{side}_attention_heads"),
        config.positive_int("d_model"),
    )
    attention = biased_attention(n_heads, d_model)
    feed_forward = Dense(
        config.positive_int(f"{side}_ffn_dim"),
        config.activation("activation_function", "gelu"),
        bias=True,
    )
    cross = attention if side == "decoder" else None
    return Layer(attention, feed_forward, Norm("layer", "post"), cross=cross)


def read_marian(config: Config) -> Spec:
    config.require(
        tie_word_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
    )
    spec = read(config, Sinusoidal("halves"), embed_norm=False)
    if config.flag("share_encoder_decoder_embeddings", True):
        config.require(decoder_vocab_size=spec.vocab_size)
        return spec
    return replace(
        spec,
        source_vocab_size=spec.vocab_size,
        vocab_size=config.positive_int("decoder_vocab_size"),
    )


def read_bart(config: Config) -> Spec:
    config.require(
        tie_word_embeddings=True,
        normalize_before=False,
        normalize_embedding=True,
        add_final_layer_norm=False,
    )
    return read(config, Learned(first=2), embed_norm=True)


def write(spec: Spec, model_type: str, names: tuple[str, str]) -> dict[str, Any] | None:
    if spec.encoder is None or spec.decoder is None:
        return None
    sides = {"encoder": spec.encoder, "decoder": spec.decoder}
    config: dict[str, Any] = {
        "model_type": model_type,
        "architectures": [names[0] if spec.head else names[1]],
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size,
        "d_model": spec.d_model,
        "dropout": spec.dropout,
        "pad_token_id": 0,
        "scale_embedding": spec.scaled_embedding,
        "max_position_embeddings": spec.max_len,
        "forced_eos_token_id": None,
    }
    for side, stack in sides.items():
        layer = stack.layers[0]
        if not isinstance(layer.mixer, Attention) or not isinstance(layer.feed_forward, Dense):
            return None
        config |= {
            f"{side}_layers": len(stack.each_layer()),
            f"{side}_attention_heads": layer.mixer.n_heads,
            f"{side}_ffn_dim": layer.feed_forward.d_ff,
            "activation_function": huggingface_activation(layer.feed_forward.activation),
        }
    return config


def write_marian(spec: Spec) -> dict[str, Any] | None:
    config = write(spec, "marian", ("MarianMTModel", "MarianModel"))
    if config is None or not isinstance(spec.positions, Sinusoidal):
        return None
    return config | {
        "vocab_size": spec.source_vocab_size or spec.vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "share_encoder_decoder_embeddings": spec.source_vocab_size is None,
    }


def write_bart(spec: Spec) -> dict[str, Any] | None:
    return write(spec, "bart", ("BartForConditionalGeneration", "BartModel"))


def ignored(spec: Spec) -> tuple[str, ...]:
    """Names to ignore: old files contain the sinusoids, which a formula defines."""
    return (r"model\.(en|de)coder\.embed_positions\.weight",)


MARIAN = Family("marian", rows, read_marian, write_marian, "model.", ignored, TIED)
BART = Family("bart", rows, read_bart, write_bart, "model.", tied=TIED)
