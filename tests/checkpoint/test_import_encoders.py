"""Imported encoders equal transformers: hidden states, logits and pooled vectors."""

import pytest
import tiny_sizes
from reference_models import check_encoder, save_reference
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    DistilBertModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
)

SIZE = tiny_sizes.SIZE | {"max_position_embeddings": 40}
DISTIL = {
    "dim": 32,
    "hidden_dim": 40,
    "n_layers": 2,
    "n_heads": 4,
    "vocab_size": 61,
    "max_position_embeddings": 40,
}

CASES = {
    "bert-pooler": (BertModel, BertConfig(**SIZE)),
    "bert-masked": (BertForMaskedLM, BertConfig(**SIZE, hidden_act="gelu_new", type_vocab_size=3)),
    "bert-relu": (
        BertModel,
        BertConfig(**SIZE | {"num_attention_heads": 2}, hidden_act="relu", layer_norm_eps=1e-5),
    ),
    "roberta-pooler": (RobertaModel, RobertaConfig(**SIZE, pad_token_id=1)),
    "roberta-masked": (
        RobertaForMaskedLM,
        RobertaConfig(**SIZE, pad_token_id=1, type_vocab_size=1),
    ),
    "roberta-from-1": (
        RobertaForMaskedLM,
        RobertaConfig(**SIZE, pad_token_id=0, layer_norm_eps=1e-5),
    ),
    "distilbert": (DistilBertModel, DistilBertConfig(**DISTIL)),
    "distilbert-masked": (DistilBertForMaskedLM, DistilBertConfig(**DISTIL)),
    "distilbert-relu": (
        DistilBertForMaskedLM,
        DistilBertConfig(**DISTIL | {"n_heads": 1}, activation="relu"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_vectors_heads_and_export_equal_transformers(name, tmp_path):
    kind, config = CASES[name]
    check_encoder(save_reference(kind, config, tmp_path), tmp_path, config.pad_token_id)
