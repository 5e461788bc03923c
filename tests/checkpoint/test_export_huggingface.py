"""Export to Hugging Face: transformers computes the same, or one line names what it lacks."""

import errno
from dataclasses import replace

import pytest
import torch
import transformers
from reference_models import assert_close, randomize

from qkv.checkpoint import disk
from qkv.checkpoint.folder import save_model
from qkv.checkpoint.huggingface.export import save_huggingface
from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.checkpoint.loaded_model import LoadedModel, PoolingConfig, metadata_of
from qkv.checkpoint.parity import (
    _auto_class,
    compare,
    huggingface_forward,
    load_reference,
    native_forward,
)
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.model import spec as s
from qkv.model.presets import PRESETS, decoder_only, encoder_decoder, encoder_only, preset
from qkv.model.transformer import Transformer
from qkv.text.train_tokenizer import train_tokenizer

HEADS, GATED, DENSE = s.Attention(4, 2, 8), s.Gated(40), s.Dense(40, "gelu")
LATENT = s.LatentAttention(4, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6)
MOE = s.MixtureOfExperts(4, 2, s.Gated(12), s.Gated(24), norm_topk_prob=False)
RMS = s.Norm("rms", "pre", 1e-6)


def decoder(layer: s.Layer, **options) -> s.Spec:
    return s.Spec(
        61, 32, decoder=s.Stack((layer,), causal=True, final_norm=True), max_len=48, **options
    )


SPECS = {
    "translator": (encoder_decoder(61, 32, 2, 4, 40), "marian"),
    "two vocabularies": (
        replace(encoder_decoder(61, 32, 2, 4, 40), source_vocab_size=47),
        "marian",
    ),
    "translator without biases": (
        s.Spec(
            61,
            32,
            s.Stack((s.Layer(s.Attention(4, 4, 8), s.Dense(40), s.Norm("layer", "post")),)),
            s.Stack(
                (
                    s.Layer(
                        s.Attention(4, 4, 8),
                        s.Dense(40),
                        s.Norm("layer", "post"),
                        cross=s.Attention(4, 4, 8),
                    ),
                ),
                causal=True,
            ),
            s.Sinusoidal(),
        ),
        "marian",
    ),
    "translator with learned positions": (
        replace(
            encoder_decoder(61, 32, 1, 4, 40),
            positions=s.Learned(first=2),
            encoder=replace(encoder_decoder(61, 32, 1, 4, 40).encoder, embed_norm=True),
            decoder=replace(encoder_decoder(61, 32, 1, 4, 40).decoder, embed_norm=True),
        ),
        "bart",
    ),
    "llama": (decoder_only(61, 32, 2, HEADS, GATED), "llama"),
    "llama with biases": (decoder_only(61, 32, 2, s.Attention(4, 2, 8, bias=True), GATED), "qwen2"),
    "sliding window": (decoder_only(61, 32, 2, s.Attention(4, 2, 8, window=3), GATED), "mistral"),
    "qk norm": (decoder_only(61, 32, 2, s.Attention(4, 2, 8, qk_norm=True), GATED), "qwen3"),
    "scaled embeddings": (
        replace(decoder_only(61, 32, 2, HEADS, GATED), scaled_embedding=True),
        "gemma",
    ),
    "experts": (decoder_only(61, 32, 2, HEADS, s.MixtureOfExperts(4, 2, GATED)), "mixtral"),
    "latent attention": (
        decoder(s.Layer(LATENT, MOE, RMS), positions=s.Rotary(interleaved=True)),
        "deepseek_v2",
    ),
    "gpt2": (decoder(s.Layer(s.Attention(4, 4, 8), DENSE), positions=s.Learned()), "gpt2"),
    "BERT": (encoder_only(61, 32, 2, 4, 40), "bert"),
    "an encoder without sentence types": (
        replace(encoder_only(61, 32, 2, 4, 40), token_types=0, head=None),
        "distilbert",
    ),
    "an encoder without head": (replace(encoder_only(61, 32, 2, 4, 40), head=None), "bert"),
}


def loaded(spec: s.Spec, **stored) -> LoadedModel:
    model = Transformer(spec)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.3)
    return LoadedModel(model.eval(), {}, metadata_of(model), **stored)


@pytest.mark.parametrize("name", SPECS)
def test_transformers_computes_the_same(name, tmp_path):
    spec, family = SPECS[name]
    native = loaded(spec)
    assert save_huggingface(tmp_path / "out", native) == family
    auto = getattr(transformers, _auto_class(spec))
    reference, info = auto.from_pretrained(tmp_path / "out", output_loading_info=True)
    missing = {
        key for key in info["missing_keys"] if "pooler" not in key
    }  # BertModel always has a pooler
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"]
    report = compare(native.model, family, huggingface_forward(reference.eval(), spec), 4, {})
    assert report.max_difference < 1e-4 and report.n_same == 4


UNSUPPORTED = {
    "partial rotary": (
        decoder_only(61, 32, 2, HEADS, GATED),
        {"positions": s.Rotary(partial_rotary_factor=0.5)},
        (
            "model.json: the nearest Hugging Face architecture, llama, does not "
            "support positions.partial_rotary_factor 0.5; keep this model in the qkv "
            "format"
        ),
    ),
    "a biased head": (
        decoder_only(61, 32, 2, HEADS, GATED),
        {"head": s.LmHead(tied=False, bias=True)},
        (
            "model.json: the nearest Hugging Face architecture, llama, does not "
            "support head.bias True; keep this model in the qkv format"
        ),
    ),
    "no shared expert": (
        decoder(
            s.Layer(LATENT, replace(MOE, shared_expert=None), RMS),
            positions=s.Rotary(interleaved=True),
        ),
        {},
        (
            "model.json: the nearest Hugging Face architecture, deepseek_v2, does not support "
            "decoder.layers.0.feed_forward.shared_expert None; keep this model in the qkv format"
        ),
    ),
    "no residual": (
        decoder(s.Layer(HEADS, GATED, RMS, residual=False)),
        {},
        (
            "model.json: the nearest Hugging Face architecture, llama, does not support "
            "decoder.layers.0.residual False; keep this model in the qkv format"
        ),
    ),
    "no feed-forward": (
        decoder(s.Layer(HEADS, None, RMS)),
        {},
        (
            "model.json: no Hugging Face architecture fits this model; supported: "
            "llama, mistral, qwen2, qwen3, gemma, mixtral, "
            "qwen3_moe, deepseek_v2, deepseek_v3, gpt2, bert, roberta, distilbert, marian, bart"
        ),
    ),
    "ALiBi": (
        decoder(s.Layer(s.Attention(4, 4, 8), DENSE), positions=s.ALiBi()),
        {},
        (
            "model.json: the nearest Hugging Face architecture, gpt2, does not support "
            "positions {'kind': 'alibi'}; keep this model in the qkv format"
        ),
    ),
    "recurrence": (
        decoder_only(61, 32, 2, s.Recurrent(), GATED),
        {},
        (
            "model.json: no Hugging Face architecture fits this model; supported: "
            "llama, mistral, qwen2, qwen3, gemma, mixtral, "
            "qwen3_moe, deepseek_v2, deepseek_v3, gpt2, bert, roberta, distilbert, marian, bart"
        ),
    ),
    "a translator without positions": (
        encoder_decoder(61, 32, 2, 4, 40),
        {"positions": s.NoPositions()},
        (
            "model.json: the nearest Hugging Face architecture, bart, does not "
            "support encoder.embed_norm False, decoder.embed_norm False, "
            "positions {'kind': 'none'}; keep this model in the qkv format"
        ),
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_parts_are_named_and_nothing_is_written(name, tmp_path):
    spec, change, line = UNSUPPORTED[name]
    with pytest.raises(QkvError) as error:
        save_huggingface(tmp_path / "out", loaded(replace(spec, **change)))
    assert str(error.value) == line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", sorted(PRESETS.keys() - {"seq2seq", "causal-lm", "sentence-encoder"})
)  # qkv's own architectures
def test_every_published_preset_has_a_family(name):
    from qkv.checkpoint.huggingface.export import choose_family

    families = {
        "paper-base": "marian",
        "paper-big": "marian",
        "tiny": "marian",
        "small": "marian",
        "llama2-7b": "llama",
        "llama3-8b": "llama",
        "qwen": "qwen3",
        "deepseek": "deepseek_v2",
        "minilm": "bert",
    }
    expected = "qwen3" if name.startswith("lm-") else families.get(name, name)
    assert choose_family(preset(name))[0]["model_type"] == expected


def test_a_sentence_encoder_keeps_its_pooling(tmp_path):
    pooling = PoolingConfig("mean", True, 48)
    save_huggingface(tmp_path / "out", loaded(encoder_only(61, 32, 1, 4, 40), pooling=pooling))
    assert load_huggingface(tmp_path / "out").pooling == pooling


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_transformers_loads_the_exported_tokenizer(kind, tmp_path):
    texts = ["the cat sat on the mat", "a dog and a cat", "the end"]
    tokenizer = train_tokenizer(kind, texts, 300)
    spec = decoder_only(tokenizer.vocab_size, 32, 1, HEADS, GATED)
    save_huggingface(tmp_path / "out", replace(loaded(spec), tokenizers={"tokenizer": tokenizer}))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in texts:
        assert reference(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
        assert reference.decode(
            tokenizer.encode(text), skip_special_tokens=True
        ) == tokenizer.decode(tokenizer.encode(text))
    assert (reference.eos_token_id, reference.pad_token_id) == (tokenizer.eos_id, tokenizer.pad_id)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert again.generation_config.eos_token_id == tokenizer.eos_id


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("text")
    with pytest.raises(QkvError) as error:
        save_huggingface(tmp_path / "out", loaded(decoder_only(61, 32, 1, HEADS, GATED)))
    assert str(error.value) == f"{tmp_path}/out: already exists; choose another --out"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "format, file", [("huggingface", "config.json"), ("ctranslate2", "model.bin")]
)
def test_an_export_to_the_current_directory_keeps_it(format, file, tmp_path, monkeypatch):
    tokenizer = train_tokenizer("char", ["abcdefgh"], 20)
    save_model(
        tmp_path / "native",
        loaded(encoder_decoder(tokenizer.vocab_size, 32, 1, 4, 40)).model,
        {"tokenizer": tokenizer},
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = (tmp_path / "here").stat().st_ino
    assert run(["export", "../native", "--to", format, "--out", ".", "--inputs", "2"]) == 0
    assert (tmp_path / "here" / file).exists() and (tmp_path / "here").stat().st_ino == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "native"]


def test_a_failed_export_leaves_the_current_directory_empty(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    rename = disk.rename

    def until_config(old, new):
        if new.name == "config.json":
            raise OSError(errno.ENOSPC, "")
        rename(old, new)

    monkeypatch.setattr(disk, "rename", until_config)
    with pytest.raises(QkvError) as error:
        save_huggingface(".", loaded(decoder_only(61, 32, 1, HEADS, GATED)))
    assert str(error.value) == (
        ".: not saved, the disk is full; free some space and try again (the "
        "previous version is intact)"
    )
    assert not list((tmp_path / "here").iterdir()) and [
        path.name for path in tmp_path.iterdir()
    ] == ["here"]


def test_half_precision_is_exported_unchanged(tmp_path):
    half = loaded(decoder_only(61, 32, 1, HEADS, GATED))
    half.model.to(torch.bfloat16)
    save_huggingface(tmp_path / "out", half)
    assert (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    )
    back = load_huggingface(tmp_path / "out", dtype=None).model.state_dict()
    assert all(torch.equal(back[name], weight) for name, weight in half.model.state_dict().items())


def test_a_changed_weight_is_reported(tmp_path):
    native = loaded(decoder_only(61, 32, 2, HEADS, GATED))
    save_huggingface(tmp_path / "out", native)
    name, reference = load_reference(tmp_path / "out", native.model.spec)
    assert name == f"transformers {transformers.__version__}"
    report = compare(native.model, name, reference, 4, {})
    assert report.max_difference <= report.tolerance and report.n_same == 4
    native.model.decoder.layers[1].attn.branch.q_proj.weight.data *= 1.05
    report = compare(native.model, name, reference, 4, {})
    assert report.max_difference > report.tolerance


def test_a_model_with_other_weights_differs(tmp_path):  # the comparison can fail
    spec = decoder_only(61, 32, 1, HEADS, GATED)
    save_huggingface(tmp_path / "out", loaded(spec))
    reference = randomize(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out"))
    ids = torch.arange(8)[None]
    with pytest.raises(AssertionError), torch.no_grad():
        assert_close(native_forward(loaded(spec).model)(ids, ids), reference(ids).logits, 1e-4)
