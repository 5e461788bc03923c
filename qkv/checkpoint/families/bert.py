"""BERT, MiniLM, RoBERTa and DistilBERT: config.json and tensor names.

The names of the weights show which head a checkpoint has. See docs/convert.md, "Families".
"""

from typing import Any

from qkv.checkpoint.families.config import (
    Config,
    biased_attention,
    group_layers,
    huggingface_activation,
)
from qkv.checkpoint.names import Family, Row
from qkv.model.spec import (
    Attention,
    Dense,
    Head,
    Layer,
    Learned,
    MaskedHead,
    Norm,
    Pooler,
    Spec,
    Stack,
)

OLD_NORMS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def body(prefix: str, layer: str, names: dict[str, str]) -> list[Row]:
    """The name mapping of embeddings and layers."""
    return [
        Row(f"{prefix}.embeddings.word_embeddings.{{p}}", "embed.{p}"),
        Row(f"{prefix}.embeddings.position_embeddings.{{p}}", "encoder.positions.{p}"),
        Row(f"{prefix}.embeddings.token_type_embeddings.{{p}}", "type_embed.{p}"),
        Row(f"{prefix}.embeddings.LayerNorm.{{p}}", "encoder.embed_norm.{p}"),
        *(
            Row(f"{prefix}.{layer}.{{i}}.{foreign}.{{p}}", f"encoder.layers.{{i}}.{native}.{{p}}")
            for foreign, native in names.items()
        ),
    ]


LAYER = {
    "attention.self.query": "attn.branch.q_proj",
    "attention.self.key": "attn.branch.k_proj",
    "attention.self.value": "attn.branch.v_proj",
    "attention.output.dense": "attn.branch.o_proj",
    "attention.output.LayerNorm": "attn.norm",
    "intermediate.dense": "ffn.branch.up_proj",
    "output.dense": "ffn.branch.down_proj",
    "output.LayerNorm": "ffn.norm",
}
DISTIL_LAYER = {
    "attention.q_lin": "attn.branch.q_proj",
    "attention.k_lin": "attn.branch.k_proj",
    "attention.v_lin": "attn.branch.v_proj",
    "attention.out_lin": "attn.branch.o_proj",
    "sa_layer_norm": "attn.norm",
    "ffn.lin1": "ffn.branch.up_proj",
    "ffn.lin2": "ffn.branch.down_proj",
    "output_layer_norm": "ffn.norm",
}


def head(dense: str, norm: str, bias: str) -> list[Row]:
    """The name mapping of a masked language modeling head."""
    return [
        Row(f"{dense}.{{p}}", "lm_head.dense.{p}"),
        Row(f"{norm}.{{p}}", "lm_head.norm.{p}"),
        Row(bias, "lm_head.{p}"),
    ]


def bert_rows(spec: Spec) -> list[Row]:
    rows = body("bert", "encoder.layer", LAYER)
    if isinstance(spec.head, Pooler):
        return [*rows, Row("bert.pooler.dense.{p}", "lm_head.dense.{p}")]
    return rows + head(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.{p}",
    )


def roberta_rows(spec: Spec) -> list[Row]:
    rows = body("roberta", "encoder.layer", LAYER)
    if isinstance(spec.head, Pooler):
        return [*rows, Row("roberta.pooler.dense.{p}", "lm_head.dense.{p}")]
    return rows + head("lm_head.dense", "lm_head.layer_norm", "lm_head.{p}")


def distilbert_rows(spec: Spec) -> list[Row]:
    return body("distilbert", "transformer.layer", DISTIL_LAYER) + head(
        "vocab_transform", "vocab_layer_norm", "vocab_projector.{p}"
    )


# ── config.json -> spec ─────────────────────────────────────────────────────────────────────────
def read_head(config: Config, masked: str) -> Head | None:
    """A masked language modeling head, a pooler or no head, by the weights in the checkpoint."""
    if any(name.startswith(masked) for name in config.weights) and not config.is_base_model():
        return MaskedHead(
            config.activation("hidden_act" if config.has("hidden_act") else "activation", "gelu")
        )
    return Pooler() if any("pooler.dense" in name for name in config.weights) else None


def encoder(
    config: Config, mixer: Attention, feed_forward: Dense, n_layers: int, eps: float
) -> Stack:
    config.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    layer = Layer(mixer, feed_forward, Norm("layer", "post", eps))
    return Stack(group_layers([layer] * n_layers), embed_norm=True)


def read(config: Config, masked: str, first: int) -> Spec:
    """BERT (`first` 0) or RoBERTa, whose positions start after the id of its padding token."""
    config.require(tie_word_embeddings=True)
    d_model, n_heads = (
        config.positive_int("hidden_size"),
        config.positive_int("num_attention_heads"),
    )
    mixer = biased_attention(n_heads, d_model)
    feed_forward = Dense(
        config.positive_int("intermediate_size"), config.activation("hidden_act", "gelu"), bias=True
    )
    stack = encoder(
        config,
        mixer,
        feed_forward,
        config.n_layers("num_hidden_layers"),
        config.positive_float("layer_norm_eps", 1e-12),
    )
    return Spec(
        config.positive_int("vocab_size"),
        d_model,
        stack,
        None,
        Learned(first),
        read_head(config, masked),
        token_types=config.positive_int("type_vocab_size", 2),
        dropout=config.probability("hidden_dropout_prob", 0.1),
        max_len=max(1, config.positive_int("max_position_embeddings") - first),
    )


def read_bert(config: Config) -> Spec:
    return read(config, "cls.predictions.", first=0)


def read_roberta(config: Config) -> Spec:
    pad = config.fields.get("pad_token_id", 1)
    if type(pad) is not int or not 0 <= pad < 1 << 20:
        raise config.error("pad_token_id", pad, "1")
    return read(config, "lm_head.", first=pad + 1)


def read_distilbert(config: Config) -> Spec:
    config.require(tie_word_embeddings=True)
    d_model, n_heads = config.positive_int("dim"), config.positive_int("n_heads")
    mixer = biased_attention(n_heads, d_model)
    feed_forward = Dense(
        config.positive_int("hidden_dim"), config.activation("activation", "gelu"), bias=True
    )
    stack = encoder(config, mixer, feed_forward, config.n_layers("n_layers"), 1e-12)
    return Spec(
        config.positive_int("vocab_size"),
        d_model,
        stack,
        None,
        Learned(),
        read_head(config, "vocab_"),
        max_len=config.positive_int("max_position_embeddings"),
        dropout=config.probability("dropout", 0.1),
    )


# ── spec -> config.json ─────────────────────────────────────────────────────────────────────────
def write(spec: Spec, model_type: str, name: str) -> dict[str, Any] | None:
    layer = spec.encoder.layers[0] if spec.encoder and not spec.decoder else None
    if (
        layer is None
        or not isinstance(layer.mixer, Attention)
        or not isinstance(layer.feed_forward, Dense)
    ):
        return None
    first = spec.positions.first if isinstance(spec.positions, Learned) else 0
    return {
        "model_type": model_type,
        "architectures": [f"{name}{'ForMaskedLM' if masked(spec) else 'Model'}"],
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.d_model,
        "num_attention_heads": layer.mixer.n_heads,
        "num_hidden_layers": len(spec.encoder.each_layer()) if spec.encoder else 0,
        "intermediate_size": layer.feed_forward.d_ff,
        "hidden_act": huggingface_activation(layer.feed_forward.activation),
        "layer_norm_eps": layer.norm.eps,
        "max_position_embeddings": spec.max_len + first,
        "pad_token_id": 0,
        "type_vocab_size": max(1, spec.token_types),
        "hidden_dropout_prob": spec.dropout,
    }


def masked(spec: Spec) -> bool:
    return isinstance(spec.head, MaskedHead)


def write_bert(spec: Spec) -> dict[str, Any] | None:
    return write(spec, "bert", "Bert")


def write_roberta(spec: Spec) -> dict[str, Any] | None:
    config = write(spec, "roberta", "Roberta")
    first = spec.positions.first if isinstance(spec.positions, Learned) else 0
    return None if config is None or first == 0 else config | {"pad_token_id": first - 1}


def write_distilbert(spec: Spec) -> dict[str, Any] | None:
    config = write(spec, "distilbert", "DistilBert")
    return (
        None
        if config is None or spec.token_types
        else {
            "model_type": "distilbert",
            "architectures": config["architectures"],
            "vocab_size": spec.vocab_size,
            "dim": spec.d_model,
            "n_heads": config["num_attention_heads"],
            "n_layers": config["num_hidden_layers"],
            "hidden_dim": config["intermediate_size"],
            "activation": config["hidden_act"],
            "dropout": spec.dropout,
            "max_position_embeddings": spec.max_len,
            "pad_token_id": 0,
        }
    )


POSITION_IDS = r".*embeddings\.position_ids"
BERT = Family(
    "bert",
    bert_rows,
    read_bert,
    write_bert,
    "bert.",
    lambda spec: (POSITION_IDS, r"cls\.seq_relationship\..*", r"bert\.pooler\..*"),
    {
        "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight",),
        "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    },
    OLD_NORMS,
)
ROBERTA = Family(
    "roberta",
    roberta_rows,
    read_roberta,
    write_roberta,
    "roberta.",
    lambda spec: (POSITION_IDS, r"roberta\.pooler\..*"),
    {
        "lm_head.decoder.weight": ("roberta.embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    },
    OLD_NORMS,
)
DISTILBERT = Family(
    "distilbert",
    distilbert_rows,
    read_distilbert,
    write_distilbert,
    "distilbert.",
    lambda spec: (POSITION_IDS,),
    {"vocab_projector.weight": ("distilbert.embeddings.word_embeddings.weight",)},
)
