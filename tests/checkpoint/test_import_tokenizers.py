"""Tokenizers of imported folders give the token ids of transformers."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
from reference_models import save_reference
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
from qkv.text import sentencepiece_format
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
LOUD = [text.upper() for text in ENGLISH]  # a second language without common pieces


@pytest.fixture
def opus(shared, tmp_path) -> Path:
    """An OPUS-MT folder: two SentencePiece models, one vocabulary with other ids."""
    for name in ("source.spm", "target.spm"):
        shutil.copy(shared / "spm_models" / "botchan_unigram_1k.model", tmp_path / name)
    pieces = [
        piece.text
        for piece in sentencepiece_format.read_model(tmp_path / "source.spm").pieces
        if piece.kind == sentencepiece_format.NORMAL
    ]
    names = ["</s>", "<unk>", *reversed(pieces), "▁nur", "▁drüben", "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(names)}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "de"})
    )
    save_reference(
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


def train_sentencepiece(path: Path, texts: list[str], vocab_size: int) -> list[str]:
    """Train a SentencePiece model; return its pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_prefix=str(path.with_suffix("")),
        vocab_size=vocab_size,
        minloglevel=2,
    )
    path.with_suffix(".model").rename(path)
    return [
        piece.text
        for piece in sentencepiece_format.read_model(path).pieces
        if piece.kind == sentencepiece_format.NORMAL
    ]


def marian_folder(folder: Path, lists: dict[str, list[str]], **config) -> Path:
    """A folder with these vocabularies and a Marian model of their sizes."""
    for name, pieces in lists.items():
        (folder / name).write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    names, config = (
        list(lists.values()),
        {"decoder_start_token_id": next(iter(lists.values())).index("<pad>"), **config},
    )
    tokenizer_config = {"source_lang": "en", "target_lang": "fr", "separate_vocabs": len(names) > 1}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    save_reference(
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


def test_opus_mt_token_ids_equal_marian(opus):
    loaded, expected = load_huggingface(opus), MarianTokenizer.from_pretrained(opus)
    source, target = loaded.tokenizers["source"], loaded.tokenizers["target"]
    for text in TEXTS:
        ids = source.encode(text)
        assert [*ids, source.eos_id] == expected(text)["input_ids"]
        assert target.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    assert loaded.generation == SpecialTokenIds(source.pad_id, source.pad_id, (source.eos_id,))


def test_a_target_language_code_is_one_token_as_in_marian(tmp_path):
    pieces = dict.fromkeys(
        [
            *train_sentencepiece(tmp_path / "source.spm", ENGLISH, 120),
            *train_sentencepiece(tmp_path / "target.spm", LOUD, 100),
        ]
    )
    folder = marian_folder(
        tmp_path, {"vocab.json": ["</s>", "<unk>", ">>fra<<", *pieces, ">>cmn_Hans<<", "<pad>"]}
    )
    tokenizers, expected = (
        load_huggingface(folder).tokenizers,
        MarianTokenizer.from_pretrained(folder),
    )
    for code in (">>fra<<", ">>cmn_Hans<<"):
        for text in (" the cat", "the cat", "   the  cat ", ""):
            ids, loud = (
                tokenizers["source"].encode(code + text),
                tokenizers["target"].encode(code + text.upper()),
            )
            assert [*ids, 0] == expected(code + text)["input_ids"]
            assert [*loud, 0] == expected(text_target=code + text.upper())["input_ids"]
            assert tokenizers["source"].decode(ids) == expected.decode(
                ids, skip_special_tokens=True
            )
    for text in ("the cat", "a > b", "fra << the >> cat", ">>"):
        assert [*tokenizers["source"].encode(text), 0] == expected(text)["input_ids"]
    assert tokenizers["source"].encode(">>fra<< the cat")[0] == 2


@pytest.fixture
def two_vocabularies(tmp_path) -> Path:
    """Each side has its own token ids; the target has more."""
    source, target = (
        train_sentencepiece(tmp_path / "source.spm", ENGLISH, 90),
        train_sentencepiece(tmp_path / "target.spm", LOUD, 120),
    )
    lists = {
        "vocab.json": ["</s>", "<unk>", "<pad>", *source],
        "target_vocab.json": ["</s>", "<unk>", "<pad>", *reversed(target), "<s>"],
    }
    return marian_folder(
        tmp_path,
        lists,
        share_encoder_decoder_embeddings=False,
        decoder_start_token_id=len(lists["target_vocab.json"]) - 1,
    )


def test_token_ids_of_two_vocabularies_equal_marian(two_vocabularies):
    loaded, expected = (
        load_huggingface(two_vocabularies),
        MarianTokenizer.from_pretrained(two_vocabularies),
    )
    source, target = loaded.tokenizers["source"], loaded.tokenizers["target"]
    assert (source.vocab_size, target.vocab_size) == (
        loaded.model.spec.source_vocab_size,
        loaded.model.spec.vocab_size,
    )
    for text, loud in zip(ENGLISH[:20], LOUD[:20], strict=True):
        ids = target.encode(loud)
        assert [*source.encode(text), 0] == expected(text)["input_ids"]
        assert [*ids, 0] == expected(text_target=loud)["input_ids"]
        assert target.decode(ids) == expected.decode(ids, skip_special_tokens=True)
    assert target.bos_id >= source.vocab_size  # checked against the decoder's vocabulary
    assert loaded.generation == SpecialTokenIds(target.bos_id, 2, (0,))


def test_a_missing_target_vocabulary_is_refused(two_vocabularies):
    (two_vocabularies / "target_vocab.json").unlink()
    with pytest.raises(QkvError) as error:
        load_huggingface(two_vocabularies)
    assert (
        str(error.value)
        == f"{two_vocabularies}/target_vocab.json: no such file; is the download complete?"
    )


def test_a_vocabulary_with_a_missing_id_is_refused(opus):
    ids = json.loads((opus / "vocab.json").read_text())
    (opus / "vocab.json").write_text(
        json.dumps({piece: id for piece, id in ids.items() if id != 7})
    )
    with pytest.raises(QkvError) as error:
        load_huggingface(opus)
    assert str(error.value) == (
        f"{opus}/vocab.json: token ids are not 0, 1, 2, ..., or <unk> is missing; is the "
        "download complete?"
    )


def test_gpt2_token_ids_equal_transformers(shared, tmp_path):
    save_reference(
        GPT2LMHeadModel, GPT2Config(n_embd=4, n_layer=1, n_head=1, n_positions=8), tmp_path
    )
    shutil.copy(shared / "gpt2_bpe" / "gpt2_vocab.json", tmp_path / "vocab.json")
    merges = (shared / "gpt2_bpe" / "gpt2_merges.txt").read_text()
    (tmp_path / "merges.txt").write_text(f"#version: 0.2\n{merges}")
    tokenizer, expected = (
        load_huggingface(tmp_path).tokenizers["tokenizer"],
        GPT2Tokenizer.from_pretrained(tmp_path),
    )
    assert [tokenizer.encode(text) for text in TEXTS] == [
        expected(text)["input_ids"] for text in TEXTS
    ]
    assert tokenizer.eos_id == 50_256
