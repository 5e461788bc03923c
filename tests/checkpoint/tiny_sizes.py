"""Sizes of the tiny transformers models that the tests import and export."""

VOCAB_SIZE = 61
SIZE = {  # of decoders and encoders with the fields of Llama and BERT
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCAB_SIZE,
}
LATENT = {  # of DeepSeek's attention and experts
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
}
TRANSLATOR = {  # of Marian and BART
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}
