"""Tokenizers of imported folders number a text as transformers' do."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from their_models import their
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    MarianConfig,
    MarianMTModel,
    MarianTokenizer,
)

from qkv.checkpoint.huggingface.reader import load_huggingface
from qkv.data.builtin import builtin_pairs
from qkv.errors import QkvError
from qkv.text import spm
from qkv.text.special_tokens import SpecialTokenIds

TEXTS = [
    "It was the best of times, it was the worst of times.",
    "Botchan came; 42 coins!",
    "  spaces   inside ",
    "naïve",
]

SIZE = {
    "d_model": 8,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 16,
}
ENGLISH = [pair.target for pair in builtin_pairs()[0][:600]]
LOUD = [text.upper() for text in ENGLISH]  # a second language, of which the first knows no piece


@pytest.fixture
def opus(shared, tmp_path) -> Path:
    """A folder of OPUS-MT's layout: two models, one list of numbers in another order than theirs."""
    for name in ("source.spm", "target.spm"):
        shutil.copy(shared / "spm_models" / "botchan_unigram_1k.model", tmp_path / name)
    pieces = [
        one.text for one in spm.read_model(tmp_path / "source.spm").pieces if one.kind == spm.NORMAL
    ]
    names = ["</s>", "<unk>", *reversed(pieces), "▁nur", "▁drüben", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(names)}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "de"})
    )
    their(
        MarianMTModel,
        MarianConfig(
            **SIZE,
            vocab_size=len(names),
            pad_token_id=len(names) - 1,
            eos_token_id=0,
            decoder_start_token_id=len(names) - 1,
        ),
        tmp_path,
    )
    return tmp_path


def learned(path: Path, texts: list[str], vocab_size: int) -> list[str]:
    """A SentencePiece model of these texts at this path, and its pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(path.with_suffix("")),
        vocab_size=vocab_size,
        minloglevel=2,
    )
    path.with_suffix(".model").rename(path)
    return [one.text for one in spm.read_model(path).pieces if one.kind == spm.NORMAL]


def translator_of_two(folder: Path, lists: dict[str, list[str]], **config) -> Path:
    """A folder with these lists of pieces and a model that fits them."""
    for name, pieces in lists.items():
        (folder / name).write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    names, config = (
        list(lists.values()),
        {"decoder_start_token_id": next(iter(lists.values())).index("<pad>"), **config},
    )
    about = {"source_lang": "en", "target_lang": "fr", "separate_vocabs": len(names) > 1}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    their(
        MarianMTModel,
        MarianConfig(
            **SIZE,
            vocab_size=len(names[0]),
            decoder_vocab_size=len(names[-1]),
            eos_token_id=0,
            pad_token_id=names[0].index("<pad>"),
            **config,
        ),
        folder,
    )
    return folder


def test_opus_mts_two_models_and_one_list_number_a_text_as_marians(opus):
    loaded, theirs = load_huggingface(opus), MarianTokenizer.from_pretrained(opus)
    source, target = loaded.tokenizers["source"], loaded.tokenizers["target"]
    for text in TEXTS:
        ids = source.encode(text)
        assert [*ids, source.eos_id] == theirs(text)["input_ids"]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert loaded.generation == SpecialTokenIds(source.pad_id, source.pad_id, (source.eos_id,))


def test_the_code_of_the_target_language_is_one_token_as_marians(tmp_path):
    pieces = dict.fromkeys(
        [
            *learned(tmp_path / "source.spm", ENGLISH, 120),
            *learned(tmp_path / "target.spm", LOUD, 100),
        ]
    )
    folder = translator_of_two(
        tmp_path, {"vocab.json": ["</s>", "<unk>", ">>fra<<", *pieces, ">>cmn_Hans<<", "<pad>"]}
    )
    tokenizers, theirs = (
        load_huggingface(folder).tokenizers,
        MarianTokenizer.from_pretrained(folder),
    )
    for code in (">>fra<<", ">>cmn_Hans<<"):
        for text in (" the cat", "the cat", "   the  cat ", ""):
            mine, loud = (
                tokenizers["source"].encode(code + text),
                tokenizers["target"].encode(code + text.upper()),
            )
            assert [*mine, 0] == theirs(code + text)["input_ids"]
            assert [*loud, 0] == theirs(text_target=code + text.upper())["input_ids"]
            assert tokenizers["source"].decode(mine) == theirs.decode(
                mine, skip_special_tokens=True
            )
    for text in ("the cat", "a > b", "fra << the >> cat", ">>"):
        assert [*tokenizers["source"].encode(text), 0] == theirs(text)["input_ids"]
    assert tokenizers["source"].encode(">>fra<< the cat")[0] == 2


@pytest.fixture
def two_lists(tmp_path) -> Path:
    """Each side has numbers of its own; the target has more of them."""
    source, target = (
        learned(tmp_path / "source.spm", ENGLISH, 90),
        learned(tmp_path / "target.spm", LOUD, 120),
    )
    lists = {
        "vocab.json": ["</s>", "<unk>", "<pad>", *source],
        "target_vocab.json": ["</s>", "<unk>", "<pad>", *reversed(target), "<s>"],
    }
    return translator_of_two(
        tmp_path,
        lists,
        share_encoder_decoder_embeddings=False,
        decoder_start_token_id=len(lists["target_vocab.json"]) - 1,
    )


def test_two_lists_number_each_side_as_marians(two_lists):
    loaded, theirs = load_huggingface(two_lists), MarianTokenizer.from_pretrained(two_lists)
    source, target = loaded.tokenizers["source"], loaded.tokenizers["target"]
    assert (source.vocab_size, target.vocab_size) == (
        loaded.model.spec.source_vocab_size,
        loaded.model.spec.vocab_size,
    )
    for text, loud in zip(ENGLISH[:20], LOUD[:20], strict=True):
        ids = target.encode(loud)
        assert [*source.encode(text), 0] == theirs(text)["input_ids"]
        assert [*ids, 0] == theirs(text_target=loud)["input_ids"]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert target.bos_id >= source.vocab_size  # what the decoder can say counts
    assert loaded.generation == SpecialTokenIds(target.bos_id, 2, (0,))


def test_a_model_with_two_vocabularies_and_one_list_is_refused(two_lists):
    (two_lists / "target_vocab.json").unlink()
    with pytest.raises(QkvError) as error:
        load_huggingface(two_lists)
    assert (
        str(error.value)
        == f"{two_lists}/target_vocab.json: no such file; is the download complete?"
    )


def test_a_list_with_a_gap_is_refused(opus):
    ids = json.loads((opus / "vocab.json").read_text())
    (opus / "vocab.json").write_text(
        json.dumps({piece: id for piece, id in ids.items() if id != 7})
    )
    with pytest.raises(QkvError) as error:
        load_huggingface(opus)
    assert str(error.value) == (
        f"{opus}/vocab.json: does not number its pieces from 0 on, with <unk> among them; is the "
        "download complete?"
    )


def test_gpt2s_two_files_number_a_text_as_theirs(shared, tmp_path):
    their(GPT2LMHeadModel, GPT2Config(n_embd=4, n_layer=1, n_head=1, n_positions=8), tmp_path)
    shutil.copy(shared / "gpt2_bpe" / "gpt2_vocab.json", tmp_path / "vocab.json")
    merges = (shared / "gpt2_bpe" / "gpt2_merges.txt").read_text()
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    tokenizer, theirs = (
        load_huggingface(tmp_path).tokenizers["tokenizer"],
        GPT2Tokenizer.from_pretrained(tmp_path),
    )
    assert [tokenizer.encode(text) for text in TEXTS] == [
        theirs(text)["input_ids"] for text in TEXTS
    ]
    assert tokenizer.eos_id == 50_256
