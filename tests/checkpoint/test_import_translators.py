"""Imported encoder-decoder models equal transformers: logits and greedy texts."""

import pytest
from reference_models import check_translator, save_reference
from tiny_sizes import TRANSLATOR
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

SIZE = TRANSLATOR | {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}
LOPSIDED = {
    "encoder_layers": 3,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_ffn_dim": 24,
}

CASES = {
    "marian": (
        MarianMTModel,
        MarianConfig(**SIZE, scale_embedding=True, activation_function="swish"),
    ),
    "marian-lopsided": (MarianMTModel, MarianConfig(**SIZE | LOPSIDED, activation_function="relu")),
    "marian-two-vocabularies": (
        MarianMTModel,
        MarianConfig(
            **SIZE,
            decoder_vocab_size=47,
            share_encoder_decoder_embeddings=False,
            scale_embedding=True,
        ),
    ),
    "bart": (BartForConditionalGeneration, BartConfig(**SIZE)),
    "bart-lopsided": (
        BartForConditionalGeneration,
        BartConfig(**SIZE | LOPSIDED, activation_function="relu"),
    ),
    "bart-scaled": (BartForConditionalGeneration, BartConfig(**SIZE, scale_embedding=True)),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_greedy_text_and_export_equal_transformers(name, tmp_path):
    kind, config = CASES[name]
    check_translator(save_reference(kind, config, tmp_path), tmp_path)
