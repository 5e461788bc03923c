"""Encoding and decoding: round trips, special tokens, offsets, dropout, saving."""

import pickle
import random
import sys

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import QkvError
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import KINDS, TokenizerOptions, train_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "敏捷的棕色狐狸跳过了懒狗。",
    "low lower lowest newest widest",
]
BYTES = train_tokenizer("byte_bpe", CORPUS * 3, vocab_size=320)
SURROGATES, REPLACED = "".join(map(chr, range(0xD800, 0xE000))), "\ufffd" * 2048


def scalar_values() -> list[str]:
    """Return all 1,112,064 Unicode scalar values, in texts of a thousand."""
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert len(every) == 1_112_064
    return ["".join(every[i : i + 1000]) for i in range(0, len(every), 1000)]


def random_texts(count: int) -> list[str]:
    """Return texts that mix scripts, NUL, newlines, joiners, combining marks and spaces."""
    rng = random.Random(7)
    scripts = [
        range(0x20, 0x7F),
        range(0xC0, 0x250),
        range(0x370, 0x530),
        range(0x5D0, 0x700),
        range(0x900, 0xE00),
        range(0x4E00, 0x9FFF),
        range(0xAC00, 0xD7A4),
        range(0x1F300, 0x1FAFF),
        range(0xE000, 0xE100),
    ]
    odd = [
        "\0",
        "\r\n",
        "\n",
        "\u200d",
        "\ufeff",
        "\u0301",
        "  ",
        "\t",
        "\u2028",
        "<eos>",
        "\ufffd",
        "\U0010ffff",
    ]
    return [
        "".join(
            rng.choice(odd) if rng.random() < 0.2 else chr(rng.choice(rng.choice(scripts)))
            for _ in range(rng.randrange(12))
        )
        for _ in range(count)
    ]


def test_byte_bpe_round_trips_every_unicode_scalar_value():
    texts = scalar_values()
    assert BYTES.decode_batch(BYTES.encode_batch(texts)) == texts


def test_byte_bpe_round_trips_100_000_random_strings():
    texts = random_texts(100_000)
    assert BYTES.decode_batch(BYTES.encode_batch(texts)) == texts


@given(st.text())
def test_byte_bpe_round_trips_any_text(text):
    assert BYTES.decode(BYTES.encode(text)) == text


@given(st.text(st.characters(exclude_categories=()), max_size=40))
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_raises_an_error_for_any_text(every_kind, kind, text):
    ids = every_kind[kind].encode(text)
    assert all(0 <= id < every_kind[kind].vocab_size for id in ids)
    assert isinstance(every_kind[kind].decode(ids), str) and len(
        every_kind[kind].offsets(text)
    ) == len(ids)


@pytest.fixture(scope="module")
def every_kind():
    return {kind: train_tokenizer(kind, CORPUS, vocab_size=400) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogates_become_replacement_characters_everywhere(every_kind, kind):
    tokenizer, text, replaced = every_kind[kind], f"low {SURROGATES} lower", f"low {REPLACED} lower"
    assert tokenizer.encode(text) == tokenizer.encode(replaced)
    assert tokenizer.encode_batch(["fox", text]) == tokenizer.encode_batch(["fox", replaced])
    assert tokenizer.offsets(text) == tokenizer.offsets(replaced)
    assert (
        train_tokenizer(kind, [*CORPUS, text], 500).fingerprint
        == train_tokenizer(kind, [*CORPUS, replaced], 500).fingerprint
    )
    assert BYTES.decode(BYTES.encode(text)) == replaced


def test_decoding_half_a_character_gives_no_surrogate_and_no_error():
    ids = BYTES.encode("\ud800\U0001f44d")
    for start in range(len(ids)):
        BYTES.decode(ids[start:]).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_a_text_are_plain_text_unless_parse_special(every_kind, kind):
    tokenizer = every_kind[kind]
    special, id = list(tokenizer.special_ids.items())[-1]
    unknown = {tokenizer.unk_id}
    assert not set(tokenizer.encode(f"low {special} low")) & (
        set(tokenizer.special_ids.values()) - unknown
    )
    assert id in tokenizer.encode(f"low {special} low", parse_special=True)
    assert BYTES.decode(BYTES.encode("a<eos>b")) == "a<eos>b"


def test_special_tokens_in_the_corpus_do_not_become_merges():
    for kind in KINDS:
        names = ("<eos>", "<mask>", "[SEP]")
        tokenizer = train_tokenizer(
            kind,
            ["x<eos>y <eos> <mask>[SEP]"] * 9,
            600,
            TokenizerOptions(special_tokens=("<mask>",)),
        )
        plain = tokenizer.encode("x<eos>y <eos><eos> <mask> [SEP]")
        assert not {tokenizer.special_ids.get(name) for name in names} & set(plain), kind


def test_default_and_bert_special_tokens_have_the_first_ids(every_kind):
    default, bert = every_kind["byte_bpe"], every_kind["wordpiece"]
    assert (default.pad_id, default.unk_id, default.bos_id, default.eos_id) == (0, 1, 2, 3)
    assert default.mask_id is None
    assert (bert.pad_id, bert.unk_id, bert.cls_id, bert.sep_id, bert.mask_id, bert.bos_id) == (
        0,
        1,
        2,
        3,
        4,
        None,
    )
    assert (
        train_tokenizer("char", CORPUS, 99, TokenizerOptions(special_tokens=("<mask>",))).mask_id
        == 4
    )
    ids = [default.bos_id, *default.encode("fox"), default.eos_id, default.pad_id]
    assert default.decode(ids) == "fox"


@given(st.text(st.sampled_from("ab 好\n<é\u0301"), max_size=30))
def test_offsets_point_into_the_original_text(text):
    tokenizer = train_tokenizer("byte_bpe", CORPUS, 300, TokenizerOptions(lowercase=True))
    spans = tokenizer.offsets(text)
    covered = [index for start, end in spans for index in range(start, end)]
    assert sorted(set(covered)) == list(range(len(text)))
    assert covered == sorted(covered)


def test_offsets_refer_to_the_text_before_normalization():
    tokenizer = train_tokenizer(
        "word", ["hello world"], 20, TokenizerOptions(lowercase=True, nfkc=True)
    )
    text = "ＨＥＬＬＯ  wörld WORLD"
    assert [text[a:b] for a, b in tokenizer.offsets(text)] == ["ＨＥＬＬＯ", "wörld", "WORLD"]


def test_dropout_varies_the_tokens_but_not_the_text():
    text = "the lowest newest"
    different = {tuple(BYTES.encode(text, dropout=0.5)) for _ in range(50)}
    assert len(different) > 5 and {BYTES.decode(ids) for ids in different} == {text}
    assert len(BYTES.encode(text, dropout=1.0)) == len(text) and len(BYTES.encode(text)) < len(text)
    assert BYTES.encode(text) == BYTES.encode(text, dropout=0.0)


def test_dropout_needs_a_probability_and_bpe(every_kind):
    with pytest.raises(QkvError) as caught:
        BYTES.encode("a", dropout=1.5)
    assert str(caught.value) == "dropout: 1.5 is not a probability; use 0 to 1"
    with pytest.raises(QkvError) as caught:
        every_kind["word"].encode("a", dropout=0.1)
    assert str(caught.value) == "dropout: only BPE tokenizers support dropout; use 0"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_gives_the_same_ids_here_and_in_the_library(tmp_path, kind):
    tokenizer = train_tokenizer(
        kind,
        CORPUS,
        400,
        TokenizerOptions(lowercase=True, nfkc=True, split_chinese=True, special_tokens=("<mask>",)),
    )
    tokenizer.save(tmp_path / "deep/tokenizer.json")
    again, library = (
        Tokenizer.load(tmp_path / "deep"),
        tokenizers.Tokenizer.from_file(str(tmp_path / "deep/tokenizer.json")),
    )
    text = "Ｔhe LOWEST fox 棕色狐狸。"
    assert tokenizer.encode(text) == again.encode(text) == library.encode(text).ids
    assert tokenizer.decode(again.encode(text)) == library.decode(again.encode(text))
    assert (
        again.fingerprint
        == tokenizer.fingerprint
        == pickle.loads(pickle.dumps(tokenizer)).fingerprint
    )
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["tokenizer.json"]


def test_a_tensor_of_ids_decodes():
    assert BYTES.decode(torch.tensor(BYTES.encode("fox 狐狸"))) == "fox 狐狸"


def unreadable(path) -> str:
    with pytest.raises(QkvError) as caught:
        Tokenizer.load(path)
    return str(caught.value).replace(str(path), path.name)


def test_a_damaged_or_other_file_is_rejected_with_its_name(tmp_path):
    (tmp_path / "truncated.json").write_text('{"version": "1.0", "model": {"ty')
    (tmp_path / "other.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "no_merges.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}'
    )
    assert (
        unreadable(tmp_path / "truncated.json")
        == "truncated.json: damaged JSON (line 1, column 30); is the download complete?"
    )
    other = "JSON, but not a tokenizer; give a tokenizer.json of qkv or the tokenizers library"
    assert unreadable(tmp_path / "other.json") == f"other.json: {other}"
    assert unreadable(tmp_path / "list.json") == f"list.json: {other}"
    assert unreadable(tmp_path / "no_merges.json").startswith(
        "no_merges.json: not a valid tokenizer ("
    )
    assert unreadable(tmp_path / "absent.json") == "absent.json: no such file; check the path"
