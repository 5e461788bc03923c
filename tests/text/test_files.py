"""Vocabulary files of other libraries: the same ids, before and after saving."""

import base64
import json

import pytest
import sentencepiece
import tiktoken
import tokenizers
from tiktoken_ext import openai_public
from transformers import BertTokenizer

from qkv.errors import QkvError
from qkv.text.display import BYTE_DECODER
from qkv.text.files import read_tokenizer, read_vocab_and_merges, write_vocabulary
from qkv.text.lines import read_lines
from qkv.text.sentencepiece_format import read_model
from qkv.text.tiktoken_format import PATTERNS, read_ranks
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import train_tokenizer

EDGE_CASES = [
    "",
    " ",
    "  a  b \t c ",
    "a<s>b</s> <unk> <|endoftext|>",
    "\n\n",
    "ﬁ Å e\u0301 ①",
    "a\u00a0b\u3000c",
    "👍🏽 <0x0A>",
    "x" * 70,
    "don't I'LL 12345 ... !?\r\n  end",
    "\u200b\ufeff",
    "ünïcödé ЖЖ 'Ve",
]


@pytest.fixture(scope="module")
def lines(shared) -> list[str]:
    """5,000 lines of news in four languages, and edge cases."""
    files = sorted((shared / "ntrex").glob("*.txt"))
    assert len(files) == 4
    return [line for file in files for line in list(read_lines(file))[:1250]] + EDGE_CASES


def after_saving(tokenizer: Tokenizer, folder) -> Tokenizer:
    tokenizer.save(folder / "tokenizer.json")
    again = Tokenizer.load(folder)
    assert again.fingerprint == tokenizer.fingerprint
    return again


@pytest.mark.parametrize(
    "name",
    [
        "llama2_tokenizer/tokenizer.model",
        "spm_models/wmtende.model",
        "spm_models/botchan_unigram_1k.model",
    ],
)
def test_sentencepiece_models_give_the_ids_of_sentencepiece(shared, lines, tmp_path, name):
    theirs = sentencepiece.SentencePieceProcessor(str(shared / name))
    ours = read_tokenizer(shared / name)
    expected = theirs.encode(lines)
    assert ours.encode_batch(lines) == expected
    assert after_saving(ours, tmp_path).encode_batch(lines) == expected
    assert (ours.unk_id, ours.bos_id, ours.eos_id) == (
        theirs.unk_id(),
        theirs.bos_id(),
        theirs.eos_id(),
    )
    assert ours.vocab_size == theirs.vocab_size()
    known = [ids for ids in expected if ours.unk_id not in ids]
    assert ours.decode_batch(known) == theirs.decode(known)


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "bpe", "byte_fallback": True},
        {
            "model_type": "bpe",
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
        },
        {"model_type": "bpe", "user_defined_symbols": ["<sep>", "ing", "in"]},
        {"model_type": "unigram", "byte_fallback": True, "add_dummy_prefix": False},
        {
            "model_type": "unigram",
            "user_defined_symbols": ["<sep>", "ing"],
            "control_symbols": ["<x>"],
            "pad_id": 3,
        },
    ],
    ids=str,
)
def test_trained_sentencepiece_models_give_the_ids_of_sentencepiece(
    shared, lines, tmp_path, options
):
    sentencepiece.SentencePieceTrainer.train(
        input=str(shared / "spm_models/botchan.txt"),
        model_prefix=str(tmp_path / "m"),
        vocab_size=700,
        minloglevel=2,
        **options,
    )
    theirs = sentencepiece.SentencePieceProcessor(str(tmp_path / "m.model"))
    ours, sample = (
        read_tokenizer(tmp_path / "m.model"),
        [*lines[::10], *EDGE_CASES, "sing<sep>ing <x> ring"],
    )
    assert ours.encode_batch(sample) == theirs.encode(sample)


def test_gpt2_gives_the_ids_of_both_libraries(shared, lines, tmp_path):
    folder = shared / "gpt2_bpe"
    ours = read_tokenizer(folder / "gpt2_vocab.json")
    model = tokenizers.models.BPE.from_file(
        str(folder / "gpt2_vocab.json"), str(folder / "gpt2_merges.txt")
    )
    theirs = tokenizers.Tokenizer(model)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected = [encoding.ids for encoding in theirs.encode_batch(lines)]
    assert ours.encode_batch(lines) == expected
    assert tiktoken_gpt2(folder).encode_ordinary_batch(lines) == expected
    assert ours.decode_batch(expected) == lines
    assert after_saving(ours, tmp_path).encode_batch(lines) == expected
    assert (ours.vocab_size, ours.bos_id, ours.eos_id, ours.pad_id) == (50257, 50256, 50256, None)


def gpt2_ranks(folder) -> dict[bytes, int]:
    vocabulary = json.loads((folder / "gpt2_vocab.json").read_text())
    return {
        bytes(BYTE_DECODER[character] for character in piece): id
        for piece, id in vocabulary.items()
        if id < 50256
    }


def tiktoken_gpt2(folder, pattern: str = openai_public.r50k_pat_str) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "gpt2",
        pat_str=pattern,
        mergeable_ranks=gpt2_ranks(folder),
        special_tokens={"<|endoftext|>": 50256},
    )


@pytest.mark.parametrize("name", PATTERNS)
def test_rank_files_give_the_ids_of_tiktoken(shared, lines, tmp_path, monkeypatch, name):
    monkeypatch.setattr(
        openai_public, "load_tiktoken_bpe", lambda *_, **__: {}
    )  # only its pattern is needed, not the download
    theirs = tiktoken_gpt2(shared / "gpt2_bpe", getattr(openai_public, f"{name}_base")()["pat_str"])
    ranks = gpt2_ranks(shared / "gpt2_bpe")
    (tmp_path / "gpt2.tiktoken").write_text(
        "".join(f"{base64.b64encode(p).decode()} {r}\n" for p, r in ranks.items())
    )
    ours = read_ranks(tmp_path / "gpt2.tiktoken", pattern=name)
    assert ours.encode_batch(lines) == theirs.encode_ordinary_batch(lines)
    assert ours.encode("a<|endoftext|>", parse_special=True) == theirs.encode(
        "a<|endoftext|>", allowed_special="all"
    )
    assert after_saving(ours, tmp_path).encode_batch(lines[::50]) == ours.encode_batch(lines[::50])


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe"])
def test_vocab_and_merges_round_trip(lines, tmp_path, kind):
    tokenizer = train_tokenizer(kind, lines[:300], 2000)
    paths = write_vocabulary(tokenizer, tmp_path)
    assert [path.name for path in paths] == ["vocab.json", "merges.txt"]
    assert paths[1].read_text().splitlines()[0] == "#version: 0.2"
    assert read_tokenizer(tmp_path).encode_batch(lines) == tokenizer.encode_batch(lines)
    assert read_tokenizer(tmp_path).eos_id == tokenizer.eos_id == 3


@pytest.mark.parametrize("lowercase", [True, False])
def test_vocab_txt_gives_the_ids_of_berts_tokenizer(lines, tmp_path, lowercase):
    text = [line.lower() if lowercase else line for line in lines[:400]]
    write_vocabulary(train_tokenizer("wordpiece", text, 4000), tmp_path)
    ours = read_tokenizer(tmp_path / "vocab.txt")
    theirs = BertTokenizer(vocab=str(tmp_path / "vocab.txt"), do_lower_case=lowercase)
    assert (
        ours.encode_batch(lines[::4]) == theirs(lines[::4], add_special_tokens=False)["input_ids"]
    )
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)


def error_of(read, *paths) -> str:
    with pytest.raises(QkvError) as caught:
        read(*paths)
    message = str(caught.value)
    for path in paths:
        message = message.replace(str(path), path.name)
    return message


def test_damaged_vocabularies_are_rejected_with_the_file_name(tmp_path):
    def file(name: str, content: bytes):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    vocab, merges = (
        file("vocab.json", b'{"a": 0, "b</w>": 1}'),
        file("merges.txt", b"#version: 0.2\na b</w>\n"),
    )
    assert error_of(read_vocab_and_merges, vocab, merges) == (
        "merges.txt: 1 tokens are not in vocab.json (ab</w>); do the two files belong together?"
    )
    assert error_of(
        read_vocab_and_merges, vocab, file("merges.txt", b"#version: 0.2\na b c\n")
    ) == ("merges.txt, line 2: 'a b c' is not a merge; write two tokens separated by a space")
    assert error_of(read_vocab_and_merges, file("vocab.json", b'{"a": 0'), merges) == (
        "vocab.json: damaged JSON (line 1, column 8); is the download complete?"
    )
    assert error_of(read_vocab_and_merges, file("vocab.json", b'{"a": "x"}'), merges) == (
        'vocab.json: not a mapping from tokens to ids; write {"token": 0, ...}'
    )
    assert error_of(
        read_vocab_and_merges,
        file("vocab.json", b'{"a": 0}'),
        file("merges.txt", b"#version: 0.2\n"),
    ) == (
        "vocab.json: neither all 256 bytes nor a token with </w>; "
        "give a byte-level or </w> vocabulary"
    )
    assert error_of(read_tokenizer, file("vocab.txt", b"low\nest\n")) == (
        "vocab.txt: no [UNK], so not a WordPiece vocabulary; "
        "give one token per line, as in BERT's vocab.txt"
    )
    for content in (b"", b"hello", b"\x0a\xff\xff\xff\xff\x0f", bytes(range(256))):
        assert error_of(read_tokenizer, file("m.model", content)) == (
            "m.model: not a complete SentencePiece model; is the download complete?"
        )
    assert (
        error_of(read_tokenizer, tmp_path / "none.model")
        == "none.model: no such file; check the path"
    )
    assert error_of(read_tokenizer, file("r.tiktoken", b"IQ== 0\n%% 1\n")) == (
        "r.tiktoken, line 2: not a base64 token and its rank; give a tiktoken rank file"
    )
    assert error_of(read_tokenizer, file("r.tiktoken", b"IQ== 0\n")) == (
        "r.tiktoken: 255 of the 256 bytes have no rank; is the download complete?"
    )
    (tmp_path / "empty").mkdir()
    assert error_of(read_tokenizer, tmp_path / "empty").startswith(
        "empty: no tokenizer in this folder; it should hold "
    )
    assert error_of(
        lambda folder: write_vocabulary(train_tokenizer("char", ["a"], 9), folder), tmp_path
    ) == (
        f"{tmp_path.name}: no vocabulary file format for a WordLevel tokenizer; "
        "save it as tokenizer.json"
    )


def test_a_truncated_sentencepiece_model_is_rejected(shared, tmp_path):
    raw = (shared / "spm_models/botchan_unigram_1k.model").read_bytes()
    for size in (3, 14, 15, 100):
        (tmp_path / "truncated.model").write_bytes(raw[:size])
        with pytest.raises(QkvError):
            read_model(tmp_path / "truncated.model")
