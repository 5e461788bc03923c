"""Marian (OPUS-MT) and BART: encoder-decoders in the paper's order, norms after each sum.

In: their config.json. Out: our spec, and back. Marian's places are sines, BART's a trained table from 2 on.
Told in docs/convert.md, "Families".
"""

from dataclasses import replace
from typing import Any, Literal

from qkv.checkpoint.families.config import Config, biased_heads, grouped, their_activation
from qkv.checkpoint.names import Family, Row, RowVector
from qkv.model.spec import (
    Dense,
    Heads,
    Layer,
    Learned,
    LmHead,
    Norm,
    Positions,
    Sinusoidal,
    Spec,
    Stack,
)

SIDES: tuple[tuple[str, Literal["all", "past"]], ...] = (("encoder", "all"), ("decoder", "past"))
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
        Row(f"model.{side}.layers.{{i}}.{theirs}.{{p}}", f"{side}.layers.{{i}}.{ours}.{{p}}")
        for side in ("encoder", "decoder")
        for theirs, ours in PARTS.items()
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
COPIES = {
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
    """What both share."""
    encoder, decoder = (
        Stack(
            grouped([side_layer(config, side)] * config.layers(f"{side}_layers")),
            sees,
            embed_norm=embed_norm,
        )
        for side, sees in SIDES
    )
    head = None if config.is_bare() else LmHead(tied=True, bias=True)
    return Spec(
        config.whole("vocab_size"),
        config.whole("d_model"),
        encoder,
        decoder,
        positions,
        head,
        scaled_embedding=config.flag("scale_embedding", False),
        dropout=config.share("dropout", 0.1),
        max_len=config.whole("max_position_embeddings"),
    )


def side_layer(config: Config, side: str) -> Layer:
    n_heads, d_model = config.whole(f"{side}_attention_heads"), config.whole("d_model")
    heads = biased_heads(n_heads, d_model)
    part = Dense(
        config.whole(f"{side}_ffn_dim"), config.activation("activation_function", "gelu"), bias=True
    )
    return Layer(heads, part, Norm("layer", "post"), cross=heads if side == "decoder" else None)


def read_marian(config: Config) -> Spec:
    config.only(
        tie_word_embeddings=True,
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
    )
    spec = read(config, Sinusoidal("halves"), embed_norm=False)
    if config.flag("share_encoder_decoder_embeddings", True):
        config.only(decoder_vocab_size=spec.vocab_size)
        return spec
    return replace(
        spec, source_vocab_size=spec.vocab_size, vocab_size=config.whole("decoder_vocab_size")
    )


def read_bart(config: Config) -> Spec:
    config.only(
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
        if not isinstance(layer.mixer, Heads) or not isinstance(layer.feed_forward, Dense):
            return None
        config |= {
            f"{side}_layers": len(stack.each_layer()),
            f"{side}_attention_heads": layer.mixer.n_heads,
            f"{side}_ffn_dim": layer.feed_forward.d_ff,
            "activation_function": their_activation(layer.feed_forward.activation),
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


def sines(spec: Spec) -> tuple[str, ...]:
    """Old files keep the table of sines, which the formula tells."""
    return (r"model\.(en|de)coder\.embed_positions\.weight",)


MARIAN = Family("marian", rows, read_marian, write_marian, "model.", sines, COPIES)
BART = Family("bart", rows, read_bart, write_bart, "model.", copies=COPIES)
