"""Export to GGUF: transformers reads the same model; unsupported parts are named."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import sentencepiece
import torch
import transformers
from gguf_cases import BYTES, LLAMA3, SPECS, TEXTS, decoder, gpt2_like, like_llama_3, loaded
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from qkv.checkpoint.folder import save_model
from qkv.checkpoint.gguf.export import export_gguf, save_gguf
from qkv.checkpoint.gguf.parity import check_parity
from qkv.checkpoint.gguf.reader import read_gguf
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import decoder_only, encoder_decoder, encoder_only
from qkv.model.transformer import Transformer
from qkv.text.files import read_sentencepiece
from qkv.text.normalization import TokenizerOptions
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

transformers.logging.set_verbosity_error()
# Metadata that llama.cpp reads from a GGUF file and transformers does not.
UNREAD = {
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "llama 3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "linear scaling": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    },
    "qwen 3": {"head_dim": 16},
    "gpt 2": {"n_positions": 64},
    "gpt 2 without biases": {"n_positions": 64, "n_inner": 40},
}


def fields(path: Path) -> dict:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize(
    "name", [name for name in SPECS if name not in ("mixtral", "gemma")]
)  # not supported by transformers
@torch.no_grad()
def test_transformers_computes_the_same_from_the_file(name, tmp_path):
    spec, architecture = SPECS[name]
    native, path = loaded(spec), tmp_path / "model.gguf"
    assert save_gguf(path, native) == architecture
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="model.gguf")
    config.update(UNREAD.get(name, {}))
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=reference)[
        "tensors"
    ]
    keys = reference.load_state_dict(weights, strict=False)
    reference.tie_weights()
    assert not keys.unexpected_keys and set(keys.missing_keys) <= {"lm_head.weight"}
    ids = torch.randint(0, spec.vocab_size, (2, 12))
    torch.testing.assert_close(
        native.model.logits(native.model.decode(ids)), reference(ids).logits, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_parity_report_agrees_for_every_architecture(name, tmp_path):
    native = loaded(SPECS[name][0])
    save_gguf(tmp_path / "model.gguf", native)
    report = check_parity(native.model, tmp_path / "model.gguf", "float32", 4)
    assert report.same and report.greedy and report.n_same == 4 and report.max_difference < 1e-5


def test_the_parity_report_detects_unpermuted_heads(tmp_path, monkeypatch):
    from qkv.checkpoint.gguf import architectures

    native = loaded(decoder())
    monkeypatch.setattr(
        architectures, "permute_heads", lambda weight, pair: weight
    )  # no permutation
    save_gguf(tmp_path / "model.gguf", native)
    assert not check_parity(native.model, tmp_path / "model.gguf", "float32", 4).same


def test_int8_and_float16_are_small_and_close(tmp_path):
    native = loaded(decoder(s.Attention(8, 4, 16), s.Gated(96)))
    sizes = {}
    for dtype in ("float32", "float16", "int8"):
        save_gguf(tmp_path / dtype, native, dtype)
        report = check_parity(native.model, tmp_path / dtype, dtype, 4)
        assert report.same and report.greedy == (dtype == "float32")
        sizes[dtype] = report.files[dtype]["bytes"]
    assert sizes["int8"] < 0.5 * sizes["float32"] and sizes["float16"] < 0.7 * sizes["float32"]
    kinds = {
        tensor.name: tensor.tensor_type.name
        for tensor in gguf.GGUFReader(tmp_path / "int8").tensors
    }
    assert kinds["token_embd.weight"] == "Q8_0" and kinds["blk.0.attn_norm.weight"] == "F32"
    # int8: half a step of a block's maximum, and the float16 rounding of the scale (127 / 2048)
    there, here = (
        read_gguf(tmp_path / "int8").embed.weight.view(-1, 32),
        native.model.embed.weight.view(-1, 32),
    )
    assert ((there - here).abs() <= 0.57 * here.abs().amax(dim=1, keepdim=True) / 127).all()


def test_rows_shorter_than_a_block_stay_float16(tmp_path):
    save_gguf(tmp_path / "x", loaded(decoder(s.Attention(3, 3, 6))), "int8")
    kinds = {
        tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "x").tensors
    }
    assert kinds["blk.0.attn_output.weight"] == "F16" and kinds["blk.0.attn_q.weight"] == "Q8_0"


def test_the_command_writes_one_file_and_a_report(tmp_path, capsys):
    native = loaded(decoder())
    save_model(tmp_path / "native", native.model, native.tokenizers)
    assert (
        run(["export", str(tmp_path / "native"), "--to", "gguf", "--out", str(tmp_path / "m.gguf")])
        == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{tmp_path}/m.gguf: gguf llama, ") and out[0].endswith(
        " parameters, float32"
    )
    assert out[1] == "✓ compared with the file, read as llama.cpp reads it" and out[2].endswith(
        "same greedy output: 8/8"
    )
    assert out[3].startswith("  m.gguf  ")
    assert (
        run(
            [
                "export",
                str(tmp_path / "native"),
                "--to",
                "gguf",
                "--out",
                str(tmp_path / "q"),
                "--int8",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["metadata"]["dtype"] == "int8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "native", "q"]


@pytest.mark.parametrize(
    "options, line",
    [
        (["--to", "gguf", "--out", "{native}"], "{native}: already exists; choose another --out"),
        (
            ["--to", "gguf", "--out", "{tmp}/x", "--int8", "--float16"],
            "--int8: --int8 and --float16 are both given; give one of them",
        ),
        (
            ["--to", "ctranslate2", "--out", "{tmp}/x", "--float16"],
            "--float16: not supported by ctranslate2; use --to gguf",
        ),
    ],
)
def test_an_error_is_one_line(tmp_path, options, line):
    native = loaded(decoder())
    save_model(tmp_path / "native", native.model, native.tokenizers)
    with pytest.raises(QkvError) as error:
        run(
            [
                "export",
                str(tmp_path / "native"),
                *(option.format(native=tmp_path / "native", tmp=tmp_path) for option in options),
            ]
        )
    assert str(error.value) == line.format(native=tmp_path / "native")


# ── Unsupported models ──────────────────────────────────────────────────────────────────────────
NO_ARCHITECTURE = (
    "model.json: no GGUF architecture fits this model; supported: qwen2, llama, qwen3, gemma, gpt2"
)
KEEP = "; keep this model in the qkv format"
UNSUPPORTED = {
    "sliding window": (
        decoder(s.Attention(4, 2, 8, window=4)),
        "llama, does not support decoder.layers.0.mixer.window 4",
    ),
    "partial rotary": (
        decoder(positions=s.Rotary(partial_rotary_factor=0.5)),
        "llama, does not support positions.partial_rotary_factor 0.5",
    ),
    "gelu and a biased head": (
        decoder(feed_forward=s.Gated(48, "gelu"), head=s.LmHead(False, True)),
        ("llama, does not support decoder.layers.0.feed_forward.activation 'gelu', head.bias True"),
    ),
    "an untied head beside scaled GeGLU": (
        decoder(feed_forward=s.Gated(48, "gelu_tanh"), scaled_embedding=True),
        ("gemma, does not support head.tied False"),
    ),
    "norms with biases": (
        decoder(s.Attention(4, 2, 8, qk_norm=True, bias=True)),
        ("qwen2, does not support decoder.layers.0.mixer.qk_norm True"),
    ),
    "interleaved rotary and qk norm": (
        decoder(s.Attention(4, 2, 8, qk_norm=True), positions=s.Rotary(interleaved=True)),
        ("llama, does not support decoder.layers.0.mixer.qk_norm True"),
    ),
    "no residual": (
        decoder(
            decoder=s.Stack(
                (s.Layer(s.Attention(4, 2, 8), s.Gated(48), s.Norm("rms"), residual=False),),
                causal=True,
                final_norm=True,
            )
        ),
        "llama, does not support decoder.layers.0.residual False",
    ),
    "ALiBi": (
        gpt2_like(s.Attention(4, 4, 8), s.Dense(40, "gelu_tanh"), s.ALiBi()),
        "gpt2, does not support positions {'kind': 'alibi'}",
    ),
    "relu": (
        gpt2_like(s.Attention(4, 4, 8), s.Dense(40)),
        "gpt2, does not support decoder.layers.0.feed_forward.activation 'relu'",
    ),
    "experts of another kind": (
        decoder(feed_forward=s.MixtureOfExperts(4, 2, s.Gated(24), norm_topk_prob=False)),
        ("llama, does not support decoder.layers.0.feed_forward.norm_topk_prob False"),
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_parts_are_named_and_nothing_is_written(name, tmp_path):
    spec, parts = UNSUPPORTED[name]
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "model.gguf", loaded(spec))
    assert str(error.value) == f"model.json: the nearest GGUF architecture, {parts}{KEEP}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spec",
    [
        encoder_decoder(61, 32, 1, 4, 40),
        encoder_only(61, 32, 1, 4, 40),
        decoder_only(61, 32, 1, s.Recurrent(), s.Gated(8)),
        decoder_only(61, 32, 1, s.LatentAttention(2, 8, 8, 4, 8), s.Gated(8)),
    ],
    ids=["both", "encoder", "lstm", "latent"],
)
def test_a_model_without_a_gguf_architecture_is_refused(spec, tmp_path):
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "model.gguf", loaded(spec))
    assert str(error.value) == NO_ARCHITECTURE


def test_different_layers_are_refused(tmp_path):
    spec = decoder()
    layers = (*spec.decoder.layers, replace(spec.decoder.layers[0], feed_forward=s.Gated(40)))
    with pytest.raises(QkvError, match=r"does not support decoder\.layers"):
        save_gguf(
            tmp_path / "model.gguf",
            loaded(replace(spec, decoder=replace(spec.decoder, layers=layers))),
        )


# ── Tokenizers ──────────────────────────────────────────────────────────────────────────────────
def small(tokenizer: Tokenizer, **stored):
    return loaded(
        replace(
            decoder_only(tokenizer.vocab_size, 8, 1, s.Attention(1, 1, 8), s.Gated(8)), max_len=64
        ),
        tokenizer,
        **stored,
    )


def test_transformers_reads_the_byte_level_tokenizer(tmp_path):
    save_gguf(tmp_path / "m.gguf", small(BYTES))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        assert reference(text, add_special_tokens=False)["input_ids"] == BYTES.encode(text)
    metadata = fields(tmp_path / "m.gguf")
    ids = {
        role: metadata[f"tokenizer.ggml.{role}_token_id"]
        for role in ("bos", "eos", "padding", "unknown")
    }
    assert ids == {
        "bos": BYTES.bos_id,
        "eos": BYTES.eos_id,
        "padding": BYTES.pad_id,
        "unknown": BYTES.unk_id,
    }
    assert metadata["tokenizer.ggml.token_type"][:5] == [
        3,
        2,
        3,
        3,
        1,
    ]  # control, unknown, control, control, normal


def test_the_scores_of_llama_2_tokens_have_the_order_of_sentencepiece(shared, tmp_path):
    path = shared / "llama2_tokenizer" / "tokenizer.model"
    save_gguf(
        tmp_path / "m.gguf",
        small(read_sentencepiece(path), generation=SpecialTokenIds(start_id=1, eos_ids=(2,))),
    )
    metadata, reference = (
        fields(tmp_path / "m.gguf"),
        sentencepiece.SentencePieceProcessor(str(path)),
    )
    merged = [
        id for id in range(259, 32_000) if metadata["tokenizer.ggml.scores"][id]
    ]  # others are single characters
    order = sorted(merged, key=lambda id: -metadata["tokenizer.ggml.scores"][id])
    assert [reference.GetScore(id) for id in order] == sorted(
        (reference.GetScore(id) for id in merged), reverse=True
    )
    assert len(merged) > 25_000
    kinds = [
        2
        if reference.IsUnknown(n)
        else 3
        if reference.IsControl(n)
        else 6
        if reference.IsByte(n)
        else 1
        for n in range(32_000)
    ]
    assert metadata["tokenizer.ggml.token_type"] == kinds
    assert metadata["tokenizer.ggml.tokens"] == [reference.IdToPiece(n) for n in range(32_000)]
    assert metadata["tokenizer.ggml.add_bos_token"] and metadata["tokenizer.ggml.add_space_prefix"]


def test_ids_beyond_the_tokenizer_are_marked_unused(tmp_path):
    save_gguf(tmp_path / "m.gguf", loaded(replace(decoder(), vocab_size=BYTES.vocab_size + 2)))
    metadata = fields(tmp_path / "m.gguf")
    assert metadata["tokenizer.ggml.tokens"][-1] == f"[PAD{BYTES.vocab_size + 1}]" and metadata[
        "tokenizer.ggml.token_type"
    ][-2:] == [5, 5]


TOKENIZERS = "use byte-level BPE (GPT-2, Llama 3) or SentencePiece BPE with byte fallback"


@pytest.mark.parametrize(
    "kind, options, part",
    [
        (
            "word",
            TokenizerOptions(),
            "model WordLevel, this handling of spaces, a vocabulary without byte tokens",
        ),
        (
            "bpe",
            TokenizerOptions(),
            "</w>, this handling of spaces, a vocabulary without byte tokens",
        ),
        ("byte_bpe", TokenizerOptions(lowercase=True), "normalizer Sequence"),
        (
            "byte_bpe",
            TokenizerOptions(add_prefix_space=True),
            "add_prefix_space (train with add_prefix_space: false)",
        ),
        ("byte_bpe", TokenizerOptions(split_chinese=True), "this pre-tokenizer"),
    ],
)
def test_an_unsupported_tokenizer_is_refused(kind, options, part, tmp_path):
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "m.gguf", small(train_tokenizer(kind, TEXTS, 300, options)))
    assert str(error.value) == f"tokenizer.json: llama.cpp does not support {part}; {TOKENIZERS}"
    assert not list(tmp_path.iterdir())


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    save_model(tmp_path / "native", Transformer(decoder()), {})
    with pytest.raises(QkvError) as error:
        export_gguf(tmp_path / "native", tmp_path / "m.gguf")
    assert str(error.value) == "model folder: no tokenizer.json; llama.cpp needs one"


def test_llama_3_has_its_pre_tokenizer_and_rope_frequencies(tmp_path):
    tokenizer = like_llama_3(BYTES)
    save_gguf(
        tmp_path / "m.gguf", loaded(decoder(positions=s.Rotary(5e5, scaling=LLAMA3)), tokenizer)
    )
    assert fields(tmp_path / "m.gguf")["tokenizer.ggml.pre"] == "llama-bpe"
    factors = {
        tensor.name: tensor.data.tolist() for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors
    }["rope_freqs.weight"]
    assert factors[-1] == 8.0 and factors == sorted(factors)
