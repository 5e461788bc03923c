"""BERT, MiniLM, RoBERTa and DistilBERT: config.json and tensor names.

The names of the weights show which head a checkpoint has. See docs/guides/import-export.md,
"Families".
"""

from dataclasses import replace

from qkv.checkpoint.families.config import Config
from qkv.checkpoint.families.dense import DenseFields
from qkv.checkpoint.names import Family, Fields, Names, NotExpressible, Row, part_rows
from qkv.model.spec import Head, Learned, MaskedHead, Norm, Pooler, Spec, Stack

EMBEDDINGS = {
    "word_embeddings": "embed",
    "position_embeddings": "encoder.positions",
    "token_type_embeddings": "type_embed",
    "LayerNorm": "encoder.embed_norm",
}
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
BERT_HEAD = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.norm",
    "cls.predictions": "lm_head",
}
ROBERTA_HEAD = {
    "lm_head.dense": "lm_head.dense",
    "lm_head.layer_norm": "lm_head.norm",
    "lm_head": "lm_head",
}
DISTIL_HEAD = {
    "vocab_transform": "lm_head.dense",
    "vocab_layer_norm": "lm_head.norm",
    "vocab_projector": "lm_head",
}
FIELDS = DenseFields(
    "hidden_size",
    "max_position_embeddings",
    "hidden_dropout_prob",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
)
DISTIL_FIELDS = DenseFields(
    "dim", "max_position_embeddings", "dropout", "n_layers", "n_heads", "hidden_dim", "activation"
)
POSITION_IDS = r".*embeddings\.position_ids"
OLD_NORMS = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def rows(model: str, layers: str, layer: Names, head: Names) -> list[Row]:
    return [
        *part_rows(EMBEDDINGS, f"{model}.embeddings."),
        *part_rows(layer, f"{model}.{layers}.{{i}}.", "encoder.layers.{i}."),
        *part_rows(head),
    ]


def bert_rows(spec: Spec, model: str, head: Names) -> list[Row]:
    pooler = {f"{model}.pooler.dense": "lm_head.dense"}
    return rows(model, "encoder.layer", LAYER, pooler if isinstance(spec.head, Pooler) else head)


# ── config.json -> spec ─────────────────────────────────────────────────────────────────────────
def read(config: Config, fields: DenseFields, masked: str) -> Spec:
    """`masked` begins the names of the weights of a masked language modeling head."""
    config.require(tie_word_embeddings=True)
    layer = fields.read_layer(config, Norm("layer", "post", 1e-12))
    config.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    head: Head | None = None
    if any(name.startswith(masked) for name in config.weights) and not config.is_base_model():
        name = "hidden_act" if config.has("hidden_act") else "activation"
        head = MaskedHead(config.activation(name, "gelu"))
    elif any("pooler.dense" in name for name in config.weights):
        head = Pooler()
    encoder = Stack((layer,), embed_norm=True)
    return Spec(encoder=encoder, positions=Learned(), head=head, **fields.read_sizes(config))


def read_bert(config: Config, masked: str = "cls.predictions.") -> Spec:
    spec = read(config, FIELDS, masked)
    return replace(spec, token_types=config.positive_int("type_vocab_size", 2))


def read_roberta(config: Config) -> Spec:
    """RoBERTa's positions start after the id of its padding token."""
    pad = config.fields.get("pad_token_id", 1)
    if type(pad) is not int or not 0 <= pad < 1 << 20:
        raise config.error("pad_token_id", pad, "1")
    spec = read_bert(config, "lm_head.")
    return replace(spec, positions=Learned(pad + 1), max_len=max(1, spec.max_len - pad - 1))


def read_distilbert(config: Config) -> Spec:
    return read(config, DISTIL_FIELDS, "vocab_")


# ── spec -> config.json ─────────────────────────────────────────────────────────────────────────
def write(spec: Spec, fields: DenseFields) -> Fields:
    return fields.write(spec, None if spec.decoder else spec.encoder) | {"pad_token_id": 0}


def write_bert(spec: Spec) -> Fields:
    return write(spec, FIELDS) | {
        "max_position_embeddings": spec.max_len + first_position(spec),
        "type_vocab_size": max(1, spec.token_types),
    }


def write_roberta(spec: Spec) -> Fields:
    first = first_position(spec)
    if first == 0:
        raise NotExpressible
    return write_bert(spec) | {"pad_token_id": first - 1}


def write_distilbert(spec: Spec) -> Fields:
    if spec.token_types:
        raise NotExpressible
    return write(spec, DISTIL_FIELDS)


def first_position(spec: Spec) -> int:
    return spec.positions.first if isinstance(spec.positions, Learned) else 0


BERT = Family(
    "Bert",
    lambda spec: bert_rows(spec, "bert", BERT_HEAD),
    read_bert,
    write_bert,
    (POSITION_IDS, r"cls\.seq_relationship\..*", r"bert\.pooler\..*"),
    {
        "cls.predictions.decoder.weight": ("bert.embeddings.word_embeddings.weight",),
        "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    },
    OLD_NORMS,
    "bert.",
    "ForMaskedLM",
)
ROBERTA = Family(
    "Roberta",
    lambda spec: bert_rows(spec, "roberta", ROBERTA_HEAD),
    read_roberta,
    write_roberta,
    (POSITION_IDS, r"roberta\.pooler\..*"),
    {
        "lm_head.decoder.weight": ("roberta.embeddings.word_embeddings.weight",),
        "lm_head.decoder.bias": ("lm_head.bias",),
    },
    OLD_NORMS,
    "roberta.",
    "ForMaskedLM",
)
DISTILBERT = Family(
    "DistilBert",
    lambda spec: rows("distilbert", "transformer.layer", DISTIL_LAYER, DISTIL_HEAD),
    read_distilbert,
    write_distilbert,
    (POSITION_IDS,),
    {"vocab_projector.weight": ("distilbert.embeddings.word_embeddings.weight",)},
    prefix="distilbert.",
    head="ForMaskedLM",
)
