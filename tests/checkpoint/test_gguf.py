"""Models of ours as GGUF files: transformers and the gguf package find in them what we wrote; what does not fit is named."""

import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import sentencepiece
import torch
import transformers
from gguf_cases import BYTES, LLAMA3, SPECS, TEXTS, decoder, loaded, of_2019
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
from qkv.text.learn import learn
from qkv.text.pipeline import Choices
from qkv.text.ranks import PATTERNS
from qkv.text.special_tokens import SpecialTokenIds
from qkv.text.tokenizer import Tokenizer

transformers.logging.set_verbosity_error()
# What transformers does not read from a GGUF file, although llama.cpp does.
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
    return {name: one.contents() for name, one in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize(
    "name", [name for name in SPECS if name not in ("mixtral", "gemma")]
)  # which it does not read
@torch.no_grad()
def test_transformers_computes_the_same_from_the_file(name, tmp_path):
    spec, architecture = SPECS[name]
    mine, path = loaded(spec), tmp_path / "model.gguf"
    assert save_gguf(path, mine) == architecture
    config = transformers.AutoConfig.from_pretrained(tmp_path, gguf_file="model.gguf")
    config.update(UNREAD.get(name, {}))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    weights = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=theirs)["tensors"]
    lost = theirs.load_state_dict(weights, strict=False)
    theirs.tie_weights()
    assert not lost.unexpected_keys and set(lost.missing_keys) <= {"lm_head.weight"}
    ids = torch.randint(0, spec.vocab_size, (2, 12))
    torch.testing.assert_close(
        mine.model.logits(mine.model.decode(ids)), theirs(ids).logits, rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("name", SPECS)
def test_the_report_agrees_for_everything_that_fits(name, tmp_path):
    mine = loaded(SPECS[name][0])
    save_gguf(tmp_path / "model.gguf", mine)
    report = check_parity(mine.model, tmp_path / "model.gguf", "float32", 4)
    assert report.same and report.greedy and report.n_same == 4 and report.largest < 1e-5


def test_the_report_sees_a_head_whose_order_is_wrong(tmp_path, monkeypatch):
    from qkv.checkpoint.gguf import architectures

    mine = loaded(decoder())
    monkeypatch.setattr(
        architectures, "swapped", lambda weight, pair: weight
    )  # as if the order had been forgotten
    save_gguf(tmp_path / "model.gguf", mine)
    assert not check_parity(mine.model, tmp_path / "model.gguf", "float32", 4).same


def test_numbers_of_8_and_16_bits_are_small_and_close(tmp_path):
    mine = loaded(decoder(s.Heads(8, 4, 16), s.Gated(96)))
    sizes = {}
    for dtype in ("float32", "float16", "int8"):
        save_gguf(tmp_path / dtype, mine, dtype)
        report = check_parity(mine.model, tmp_path / dtype, dtype, 4)
        assert report.same and report.greedy == (dtype == "float32")
        sizes[dtype] = report.files[dtype]["bytes"]
    assert sizes["int8"] < 0.5 * sizes["float32"] and sizes["float16"] < 0.7 * sizes["float32"]
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "int8").tensors}
    assert kinds["token_embd.weight"] == "Q8_0" and kinds["blk.0.attn_norm.weight"] == "F32"
    # 8 bits: half a step of a block's largest number, and what the step loses in float16 (127 / 2048 of it)
    there, here = (
        read_gguf(tmp_path / "int8").embed.weight.view(-1, 32),
        mine.model.embed.weight.view(-1, 32),
    )
    assert ((there - here).abs() <= 0.57 * here.abs().amax(dim=1, keepdim=True) / 127).all()


def test_narrow_rows_stay_in_16_bits(tmp_path):
    save_gguf(tmp_path / "x", loaded(decoder(s.Heads(3, 3, 6))), "int8")
    kinds = {one.name: one.tensor_type.name for one in gguf.GGUFReader(tmp_path / "x").tensors}
    assert kinds["blk.0.attn_output.weight"] == "F16" and kinds["blk.0.attn_q.weight"] == "Q8_0"


def test_the_command_writes_one_file_and_tells(tmp_path, capsys):
    mine = loaded(decoder())
    save_model(tmp_path / "ours", mine.model, mine.tokenizers)
    assert (
        run(["export", str(tmp_path / "ours"), "--to", "gguf", "--out", str(tmp_path / "m.gguf")])
        == 0
    )
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{tmp_path}/m.gguf: gguf llama, ") and out[0].endswith(
        " parameters, float32"
    )
    assert out[1] == "✓ compared with the file, read as llama.cpp reads it" and out[2].endswith(
        "same greedy text 8/8"
    )
    assert out[3].startswith("  m.gguf  ")
    assert (
        run(
            [
                "export",
                str(tmp_path / "ours"),
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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "ours", "q"]


@pytest.mark.parametrize(
    "options, line",
    [
        (["--to", "gguf", "--out", "{ours}"], "{ours}: is there already; choose another --out"),
        (
            ["--to", "gguf", "--out", "{tmp}/x", "--int8", "--float16"],
            "--int8: 8 or 16 bits a weight, not both; give one of them",
        ),
        (
            ["--to", "ctranslate2", "--out", "{tmp}/x", "--float16"],
            "--float16: ctranslate2 does not take it; use --to gguf",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path, options, line):
    mine = loaded(decoder())
    save_model(tmp_path / "ours", mine.model, mine.tokenizers)
    with pytest.raises(QkvError) as error:
        run(
            [
                "export",
                str(tmp_path / "ours"),
                *(one.format(ours=tmp_path / "ours", tmp=tmp_path) for one in options),
            ]
        )
    assert str(error.value) == line.format(ours=tmp_path / "ours")


# ── What does not fit ────────────────────────────────────────────────────────────────────────────────────────────
NO_SHAPE = "model.json: llama.cpp has no model of this shape that we write; we write qwen2, llama, qwen3, gemma, gpt2"
STAYS = "; such a model stays in our own format"
WRONG = {
    "a window": (
        decoder(s.Heads(4, 2, 8, window=4)),
        "llama, has no way to say decoder.layers.0.mixer.window 4",
    ),
    "half a turn": (
        decoder(positions=s.Rotary(share=0.5)),
        "llama, has no way to say positions.share 0.5",
    ),
    "gelu and a biased head": (
        decoder(wide=s.Gated(48, "gelu"), head=s.LmHead(False, True)),
        (
            "llama, has no way to say decoder.layers.0.feed_forward.activation 'gelu', head.bias True"
        ),
    ),
    "an untied head beside scaled GeGLU": (
        decoder(wide=s.Gated(48, "gelu_tanh"), scaled_embedding=True),
        ("gemma, has no way to say head.tied False"),
    ),
    "norms with biases": (
        decoder(s.Heads(4, 2, 8, qk_norm=True, bias=True)),
        ("qwen2, has no way to say decoder.layers.0.mixer.qk_norm True"),
    ),
    "neighbours and norms": (
        decoder(s.Heads(4, 2, 8, qk_norm=True), positions=s.Rotary(pairs="adjacent")),
        ("llama, has no way to say decoder.layers.0.mixer.qk_norm True"),
    ),
    "relu": (
        of_2019(s.Heads(4, 4, 8), s.Dense(40)),
        "gpt2, has no way to say decoder.layers.0.feed_forward.activation 'relu'",
    ),
    "experts of another kind": (
        decoder(wide=s.Experts(4, 2, s.Gated(24), normalised=False)),
        ("llama, has no way to say decoder.layers.0.feed_forward.normalised False"),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_gguf_cannot_say_is_named_and_nothing_is_written(name, tmp_path):
    spec, parts = WRONG[name]
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "model.gguf", loaded(spec))
    assert str(error.value) == f"model.json: GGUF's nearest architecture, {parts}{STAYS}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "spec",
    [
        encoder_decoder(61, 32, 1, 4, 40),
        encoder_only(61, 32, 1, 4, 40),
        decoder_only(61, 32, 1, s.Recurrent(), s.Gated(8)),
        decoder_only(61, 32, 1, s.Latent(2, 8, 8, 4, 8), s.Gated(8)),
    ],
    ids=["both", "encoder", "lstm", "latent"],
)
def test_a_shape_that_llama_cpp_does_not_have_is_refused(spec, tmp_path):
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "model.gguf", loaded(spec))
    assert str(error.value) == NO_SHAPE


def test_layers_that_differ_are_refused(tmp_path):
    spec = decoder()
    layers = (*spec.decoder.layers, replace(spec.decoder.layers[0], feed_forward=s.Gated(40)))
    with pytest.raises(QkvError, match=r"has no way to say decoder\.layers"):
        save_gguf(
            tmp_path / "model.gguf",
            loaded(replace(spec, decoder=replace(spec.decoder, layers=layers))),
        )


# ── Tokenizers ───────────────────────────────────────────────────────────────────────────────────────────────────
def small(tokenizer: Tokenizer, **stored):
    return loaded(
        replace(decoder_only(tokenizer.vocab_size, 8, 1, s.Heads(1, 1, 8), s.Gated(8)), max_len=64),
        tokenizer,
        **stored,
    )


def test_transformers_rebuilds_our_byte_level_tokenizer(tmp_path):
    save_gguf(tmp_path / "m.gguf", small(BYTES))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == BYTES.encode(text)
    told = fields(tmp_path / "m.gguf")
    ids = {
        role: told[f"tokenizer.ggml.{role}_token_id"]
        for role in ("bos", "eos", "padding", "unknown")
    }
    assert ids == {
        "bos": BYTES.bos_id,
        "eos": BYTES.eos_id,
        "padding": BYTES.pad_id,
        "unknown": BYTES.unk_id,
    }
    assert told["tokenizer.ggml.token_type"][:5] == [
        3,
        2,
        3,
        3,
        1,
    ]  # control, unknown, control, control, normal


def test_the_scores_put_llamas_pieces_in_sentencepieces_order(shared, tmp_path):
    path = shared / "llama2_tokenizer" / "tokenizer.model"
    save_gguf(
        tmp_path / "m.gguf",
        small(read_sentencepiece(path), generation=SpecialTokenIds(start_id=1, eos_ids=(2,))),
    )
    told, theirs = fields(tmp_path / "m.gguf"), sentencepiece.SentencePieceProcessor(str(path))
    made = [
        id for id in range(259, 32_000) if told["tokenizer.ggml.scores"][id]
    ]  # the rest are single characters
    order = sorted(made, key=lambda id: -told["tokenizer.ggml.scores"][id])
    assert [theirs.GetScore(id) for id in order] == sorted(
        (theirs.GetScore(id) for id in made), reverse=True
    )
    assert len(made) > 25_000
    kinds = [
        2 if theirs.IsUnknown(n) else 3 if theirs.IsControl(n) else 6 if theirs.IsByte(n) else 1
        for n in range(32_000)
    ]
    assert told["tokenizer.ggml.token_type"] == kinds
    assert told["tokenizer.ggml.tokens"] == [theirs.IdToPiece(n) for n in range(32_000)]
    assert told["tokenizer.ggml.add_bos_token"] and told["tokenizer.ggml.add_space_prefix"]


def test_ids_beyond_the_tokenizer_are_there_and_unused(tmp_path):
    save_gguf(tmp_path / "m.gguf", loaded(replace(decoder(), vocab_size=BYTES.vocab_size + 2)))
    told = fields(tmp_path / "m.gguf")
    assert told["tokenizer.ggml.tokens"][-1] == f"[PAD{BYTES.vocab_size + 1}]" and told[
        "tokenizer.ggml.token_type"
    ][-2:] == [5, 5]


WORDS = "it knows byte-level BPE (GPT-2's and Llama 3's) and SentencePiece's BPE with bytes"


@pytest.mark.parametrize(
    "kind, choices, part",
    [
        ("word", Choices(), "model WordLevel, its way to treat spaces, a vocabulary without bytes"),
        ("bpe", Choices(), "</w>, its way to treat spaces, a vocabulary without bytes"),
        ("bytes", Choices(lowercase=True), "normalizer Sequence"),
        (
            "bytes",
            Choices(add_prefix_space=True),
            "add_prefix_space (train with add_prefix_space: false)",
        ),
        ("bytes", Choices(split_chinese=True), "its way to cut text into words"),
    ],
)
def test_a_tokenizer_that_llama_cpp_would_cut_otherwise_is_refused(kind, choices, part, tmp_path):
    with pytest.raises(QkvError) as error:
        save_gguf(tmp_path / "m.gguf", small(learn(kind, TEXTS, 300, choices)))
    assert str(error.value) == f"tokenizer.json: llama.cpp has no way to say {part}; {WORDS}"
    assert not list(tmp_path.iterdir())


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    save_model(tmp_path / "ours", Transformer(decoder()), {})
    with pytest.raises(QkvError) as error:
        export_gguf(tmp_path / "ours", tmp_path / "m.gguf")
    assert str(error.value) == "model folder: no tokenizer.json; llama.cpp needs one"


def test_the_patterns_and_waves_of_llama_3_have_names(tmp_path):
    rules = json.loads(BYTES.core.to_str())
    rules["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": PATTERNS["cl100k"]},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    }
    rules["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_json(json.dumps(rules))
    save_gguf(
        tmp_path / "m.gguf", loaded(decoder(positions=s.Rotary(5e5, scaling=LLAMA3)), tokenizer)
    )
    assert fields(tmp_path / "m.gguf")["tokenizer.ggml.pre"] == "llama-bpe"
    slower = {one.name: one.data.tolist() for one in gguf.GGUFReader(tmp_path / "m.gguf").tensors}[
        "rope_freqs.weight"
    ]
    assert slower[-1] == 8.0 and slower == sorted(slower)
