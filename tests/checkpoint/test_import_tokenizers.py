"""Tokenizers of imported folders number a text as transformers' do."""

import json
import shutil
from pathlib import Path

import pytest
from their_models import their
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer, MarianConfig, MarianMTModel, MarianTokenizer

from qkv.checkpoint.huggingface import load_huggingface
from qkv.errors import QkvError
from qkv.text import spm

TEXTS = ["It was the best of times, it was the worst of times.", "Botchan came; 42 coins!", "  spaces   inside ", "naïve"]


@pytest.fixture
def opus(shared, tmp_path) -> Path:
    """A folder of OPUS-MT's layout: two models, one list of numbers in another order than theirs."""
    for name in ("source.spm", "target.spm"):
        shutil.copy(shared / "spm_models" / "botchan_unigram_1k.model", tmp_path / name)
    pieces = [one.text for one in spm.read_model(tmp_path / "source.spm").pieces if one.kind == spm.NORMAL]
    names = ["</s>", "<unk>", *reversed(pieces), "▁nur", "▁drüben", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(names)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    size = {"vocab_size": len(names), "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "max_position_embeddings": 16}
    their(MarianMTModel, MarianConfig(**size, pad_token_id=len(names) - 1, eos_token_id=0,
                                      decoder_start_token_id=len(names) - 1), tmp_path)
    return tmp_path


def test_opus_mts_two_models_and_one_list_number_a_text_as_marians(opus):
    loaded, theirs = load_huggingface(opus), MarianTokenizer.from_pretrained(opus)
    source, target = loaded.tokenizers["source"], loaded.tokenizers["target"]
    for text in TEXTS:
        ids = source.encode(text)
        assert [*ids, source.eos_id] == theirs(text)["input_ids"]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert loaded.facts["generation"] == {"start_id": source.pad_id, "pad_id": source.pad_id, "eos_ids": [source.eos_id]}


def test_a_list_with_a_gap_is_refused(opus):
    ids = json.loads((opus / "vocab.json").read_text())
    (opus / "vocab.json").write_text(json.dumps({piece: id for piece, id in ids.items() if id != 7}))
    with pytest.raises(QkvError) as error:
        load_huggingface(opus)
    assert str(error.value) == (f"{opus}/vocab.json: does not number its pieces from 0 on, with <unk> among them; is the "
                                "download complete?")


def test_gpt2s_two_files_number_a_text_as_theirs(shared, tmp_path):
    their(GPT2LMHeadModel, GPT2Config(n_embd=4, n_layer=1, n_head=1, n_positions=8), tmp_path)
    shutil.copy(shared / "gpt2_bpe" / "gpt2_vocab.json", tmp_path / "vocab.json")
    merges = (shared / "gpt2_bpe" / "gpt2_merges.txt").read_text()
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    tokenizer, theirs = load_huggingface(tmp_path).tokenizers["tokenizer"], GPT2Tokenizer.from_pretrained(tmp_path)
    assert [tokenizer.encode(text) for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert tokenizer.eos_id == 50_256
