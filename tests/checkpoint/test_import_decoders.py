"""Imported decoders equal transformers: logits and greedy texts of tiny random models."""

import pytest
import tiny_sizes
from reference_models import check_decoder, save_reference
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SIZE = tiny_sizes.SIZE | {"num_key_value_heads": 2, "max_position_embeddings": 80}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
SPARSE = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = SIZE | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "moe_intermediate_size": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}
DEEP_YARN = YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}


def gpt2(n_embd: int, n_layer: int, n_head: int, n_positions: int, vocab_size=61, **options):
    sizes = {"n_embd": n_embd, "n_layer": n_layer, "n_head": n_head, "n_positions": n_positions}
    return GPT2LMHeadModel, GPT2Config(**sizes, vocab_size=vocab_size, **options)


CASES = {
    "llama-2": (LlamaForCausalLM, LlamaConfig(**SIZE)),
    "llama-3": (
        LlamaForCausalLM,
        LlamaConfig(
            **SIZE | {"num_key_value_heads": 1}, rope_parameters=LLAMA3, tie_word_embeddings=True
        ),
    ),
    "llama-biased": (
        LlamaForCausalLM,
        LlamaConfig(
            **SIZE | {"num_key_value_heads": 4},
            head_dim=6,
            attention_bias=True,
            mlp_bias=True,
            hidden_act="gelu",
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        ),
    ),
    "gpt2": gpt2(32, 2, 4, 80),
    "gpt2-one-head": gpt2(20, 3, 1, 70, n_inner=28, vocab_size=50, activation_function="relu"),
    "gpt2-untied": gpt2(
        24, 1, 3, 64, vocab_size=41, layer_norm_epsilon=1e-6, tie_word_embeddings=False
    ),
    "mistral": (MistralForCausalLM, MistralConfig(**SIZE, sliding_window=5)),
    "mistral-open": (MistralForCausalLM, MistralConfig(**SIZE, sliding_window=None, head_dim=10)),
    "mistral-narrow": (
        MistralForCausalLM,
        MistralConfig(**SIZE, sliding_window=2, tie_word_embeddings=True),
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SIZE)),
    "qwen2-window": (
        Qwen2ForCausalLM,
        Qwen2Config(**SIZE, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    ),
    "qwen2.5-yarn": (
        Qwen2ForCausalLM,
        Qwen2Config(**SIZE, rope_parameters=YARN, tie_word_embeddings=True),
    ),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZE, head_dim=12)),
    "qwen3-tied": (Qwen3ForCausalLM, Qwen3Config(**SIZE, head_dim=8, tie_word_embeddings=True)),
    "qwen3-biased": (
        Qwen3ForCausalLM,
        Qwen3Config(
            **SIZE,
            head_dim=8,
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=3,
            max_window_layers=1,
        ),
    ),
    "gemma": (GemmaForCausalLM, GemmaConfig(**SIZE, head_dim=16)),
    "gemma-7b": (
        GemmaForCausalLM,
        GemmaConfig(
            **SIZE | {"num_key_value_heads": 4},
            head_dim=12,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
        ),
    ),
    "gemma-biased": (
        GemmaForCausalLM,
        GemmaConfig(
            **SIZE | {"num_key_value_heads": 1}, head_dim=8, attention_bias=True, hidden_act="silu"
        ),
    ),
    "mixtral": (MixtralForCausalLM, MixtralConfig(**SIZE, **SPARSE)),
    "mixtral-one": (
        MixtralForCausalLM,
        MixtralConfig(**SIZE, num_local_experts=5, num_experts_per_tok=1),
    ),
    "mixtral-window": (
        MixtralForCausalLM,
        MixtralConfig(
            **SIZE,
            num_local_experts=3,
            num_experts_per_tok=3,
            sliding_window=4,
            tie_word_embeddings=True,
        ),
    ),
    "qwen3-moe": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **SIZE,
            moe_intermediate_size=16,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        ),
    ),
    "qwen3-moe-raw": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **SIZE,
            moe_intermediate_size=12,
            num_experts=6,
            num_experts_per_tok=3,
            norm_topk_prob=False,
        ),
    ),
    "qwen3-moe-mixed": (
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            **SIZE,
            moe_intermediate_size=12,
            num_experts=3,
            num_experts_per_tok=1,
            mlp_only_layers=[1],
        ),
    ),
    "deepseek-v2-lite": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(**LATENT, q_lora_rank=None, topk_method="greedy"),
    ),
    "deepseek-v2": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(
            **LATENT,
            q_lora_rank=10,
            topk_method="group_limited_greedy",
            n_group=4,
            topk_group=2,
            routed_scaling_factor=4.0,
        ),
    ),
    "deepseek-v2-yarn": (
        DeepseekV2ForCausalLM,
        DeepseekV2Config(
            **LATENT, q_lora_rank=None, topk_method="greedy", rope_parameters=DEEP_YARN
        ),
    ),
    "deepseek-v3": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(**LATENT, q_lora_rank=10, n_group=4, topk_group=2),
    ),
    "deepseek-v3-yarn": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(
            **LATENT,
            q_lora_rank=10,
            n_group=2,
            topk_group=1,
            rope_parameters=DEEP_YARN,
            norm_topk_prob=False,
        ),
    ),
    "deepseek-v3-halves": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config(
            **LATENT | {"first_k_dense_replace": 0},
            q_lora_rank=None,
            n_group=1,
            topk_group=1,
            rope_interleave=False,
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_greedy_text_and_export_equal_transformers(name, tmp_path):
    kind, config = CASES[name]
    check_decoder(save_reference(kind, config, tmp_path), tmp_path)
