"""Marian (OPUS-MT) and BART: config.json and tensor names.

Post-norm encoder-decoder models; Marian has sinusoidal positions, BART learned ones from index 2.
See docs/guides/import-export.md, "Families".
"""

from dataclasses import replace

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.dense import DenseFields
from qkv.checkpoint.names import Family, Fields, NotExpressible, Row, RowVector, part_rows
from qkv.model.spec import Learned, LmHead, Norm, Positions, Sinusoidal, Spec, Stack

STACK = {"embed_positions": "positions", "layernorm_embedding": "embed_norm"}
LAYER = {
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
TIED = {
    "model.encoder.embed_tokens.weight": ("model.shared.weight",),
    "model.decoder.embed_tokens.weight": ("model.shared.weight",),
    "lm_head.weight": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
}
ENCODER = DenseFields(
    "d_model",
    "max_position_embeddings",
    "dropout",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "activation_function",
)
DECODER = ENCODER._replace(
    n_layers="decoder_layers", n_heads="decoder_attention_heads", d_ff="decoder_ffn_dim"
)


def rows(spec: Spec) -> list[Row]:
    rows: list[Row] = [RowVector("final_logits_bias", "lm_head.{p}")]
    for side in ("encoder", "decoder"):
        rows += part_rows(STACK, f"model.{side}.", f"{side}.")
        rows += part_rows(LAYER, f"model.{side}.layers.{{i}}.", f"{side}.layers.{{i}}.")
    if spec.source_vocab_size is None:
        return rows + part_rows({"model.shared": "embed"})
    tables = {"model.decoder.embed_tokens": "embed", "model.encoder.embed_tokens": "source_embed"}
    return rows + part_rows(tables)


def read(config: Config, positions: Positions, embed_norm: bool) -> Spec:
    """The fields common to Marian and BART."""
    config.require(
        tie_word_embeddings=True,
        normalize_before=False,
        normalize_embedding=embed_norm,
        add_final_layer_norm=False,
    )
    norm = Norm("layer", "post")
    encoder = ENCODER.read_layer(config, norm)
    decoder = DECODER.read_layer(config, norm, cross=True)
    return Spec(
        encoder=Stack((encoder,), embed_norm=embed_norm),
        decoder=Stack((decoder,), causal=True, embed_norm=embed_norm),
        positions=positions,
        head=None if config.is_base_model() else LmHead(tied=True, bias=True),
        scaled_embedding=config.flag("scale_embedding", False),
        **ENCODER.read_sizes(config),
    )


def read_marian(config: Config) -> Spec:
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
    return read(config, Learned(first=2), embed_norm=True)


def write(spec: Spec) -> Fields:
    return {
        **ENCODER.write(spec, spec.encoder),
        **DECODER.write(spec, spec.decoder),
        "is_encoder_decoder": True,
        "pad_token_id": 0,
        "scale_embedding": spec.scaled_embedding,
        "forced_eos_token_id": None,
    }


def write_marian(spec: Spec) -> Fields:
    if not isinstance(spec.positions, Sinusoidal):
        raise NotExpressible
    return write(spec) | {
        "vocab_size": spec.source_vocab_size or spec.vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "share_encoder_decoder_embeddings": spec.source_vocab_size is None,
    }


MARIAN = Family(
    "Marian",
    rows,
    read_marian,
    write_marian,
    (r"model\.(en|de)coder\.embed_positions\.weight",),  # in old files; a formula defines them
    TIED,
    head="MTModel",
)
BART = Family("Bart", rows, read_bart, write, tied=TIED, head="ForConditionalGeneration")
