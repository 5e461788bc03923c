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
from qkv.text.learn import KINDS, Choices, learn
from qkv.text.tokenizer import Tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "敏捷的棕色狐狸跳过了懒狗。",
    "low lower lowest newest widest",
]
BYTES = learn("bytes", CORPUS * 3, vocab_size=320)
SURROGATES, MENDED = "".join(map(chr, range(0xD800, 0xE000))), "\ufffd" * 2048


def scalar_values() -> list[str]:
    """All 1,112,064 of them, in texts of a thousand."""
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert len(every) == 1_112_064
    return ["".join(every[i : i + 1000]) for i in range(0, len(every), 1000)]


def random_texts(count: int) -> list[str]:
    """Scripts mixed, with NUL, line ends, joiners, marks and spaces among them."""
    chance = random.Random(7)
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
            chance.choice(odd)
            if chance.random() < 0.2
            else chr(chance.choice(chance.choice(scripts)))
            for _ in range(chance.randrange(12))
        )
        for _ in range(count)
    ]


def test_every_unicode_scalar_value_comes_back_from_bytes():
    texts = scalar_values()
    assert BYTES.decode_batch(BYTES.encode_batch(texts)) == texts


def test_a_hundred_thousand_random_strings_come_back_from_bytes():
    texts = random_texts(100_000)
    assert BYTES.decode_batch(BYTES.encode_batch(texts)) == texts


@given(st.text())
def test_any_text_comes_back_from_bytes(text):
    assert BYTES.decode(BYTES.encode(text)) == text


@given(st.text(st.characters(exclude_categories=()), max_size=40))
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_raises_in_any_kind(every_kind, kind, text):
    ids = every_kind[kind].encode(text)
    assert all(0 <= id < every_kind[kind].vocab_size for id in ids)
    assert isinstance(every_kind[kind].decode(ids), str) and len(
        every_kind[kind].offsets(text)
    ) == len(ids)


@pytest.fixture(scope="module")
def every_kind():
    return {kind: learn(kind, CORPUS, vocab_size=400) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogates_are_replacement_signs_at_every_entry(every_kind, kind):
    tokenizer, text, mended = every_kind[kind], f"low {SURROGATES} lower", f"low {MENDED} lower"
    assert tokenizer.encode(text) == tokenizer.encode(mended)
    assert tokenizer.encode_batch(["fox", text]) == tokenizer.encode_batch(["fox", mended])
    assert tokenizer.offsets(text) == tokenizer.offsets(mended)
    assert (
        learn(kind, [*CORPUS, text], 500).fingerprint
        == learn(kind, [*CORPUS, mended], 500).fingerprint
    )
    assert BYTES.decode(BYTES.encode(text)) == mended


def test_decoding_half_a_character_gives_no_surrogate_and_no_error():
    ids = BYTES.encode("\ud800\U0001f44d")
    for start in range(len(ids)):
        BYTES.decode(ids[start:]).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_of_a_special_token_is_text_unless_asked(every_kind, kind):
    tokenizer = every_kind[kind]
    special, id = list(tokenizer.special_ids.items())[-1]
    unknown = {tokenizer.unk_id}
    assert not set(tokenizer.encode(f"low {special} low")) & (
        set(tokenizer.special_ids.values()) - unknown
    )
    assert id in tokenizer.encode(f"low {special} low", parse_special=True)
    assert BYTES.decode(BYTES.encode("a<eos>b")) == "a<eos>b"


def test_a_corpus_full_of_special_tokens_does_not_teach_them():
    for kind in KINDS:
        names = ("<eos>", "<mask>", "[SEP]")
        tokenizer = learn(
            kind, ["x<eos>y <eos> <mask>[SEP]"] * 9, 600, Choices(special_tokens=("<mask>",))
        )
        plain = tokenizer.encode("x<eos>y <eos><eos> <mask> [SEP]")
        assert not {tokenizer.special_ids.get(name) for name in names} & set(plain), kind


def test_ours_and_berts_special_tokens_stand_first(every_kind):
    ours, bert = every_kind["bytes"], every_kind["wordpiece"]
    assert (ours.pad_id, ours.unk_id, ours.bos_id, ours.eos_id, ours.mask_id) == (0, 1, 2, 3, None)
    assert (bert.pad_id, bert.unk_id, bert.cls_id, bert.sep_id, bert.mask_id, bert.bos_id) == (
        0,
        1,
        2,
        3,
        4,
        None,
    )
    assert learn("char", CORPUS, 99, Choices(special_tokens=("<mask>",))).mask_id == 4
    assert ours.decode([ours.bos_id, *ours.encode("fox"), ours.eos_id, ours.pad_id]) == "fox"


@given(st.text(st.sampled_from("ab 好\n<é\u0301"), max_size=30))
def test_offsets_point_into_the_original_text(text):
    tokenizer = learn("bytes", CORPUS, 300, Choices(lowercase=True))
    spans = tokenizer.offsets(text)
    covered = [index for start, end in spans for index in range(start, end)]
    assert sorted(set(covered)) == list(range(len(text)))
    assert covered == sorted(covered)


def test_offsets_see_through_normalization():
    tokenizer = learn("word", ["hello world"], 20, Choices(lowercase=True, nfkc=True))
    text = "ＨＥＬＬＯ  wörld WORLD"
    assert [text[a:b] for a, b in tokenizer.offsets(text)] == ["ＨＥＬＬＯ", "wörld", "WORLD"]


def test_dropout_varies_the_pieces_but_not_the_text():
    text = "the lowest newest"
    different = {tuple(BYTES.encode(text, dropout=0.5)) for _ in range(50)}
    assert len(different) > 5 and {BYTES.decode(ids) for ids in different} == {text}
    assert len(BYTES.encode(text, dropout=1.0)) == len(text) and len(BYTES.encode(text)) < len(text)
    assert BYTES.encode(text) == BYTES.encode(text, dropout=0.0)


def test_dropout_needs_a_share_and_merges(every_kind):
    with pytest.raises(QkvError) as caught:
        BYTES.encode("a", dropout=1.5)
    assert str(caught.value) == "dropout: 1.5 is not a share; choose between 0 and 1"
    with pytest.raises(QkvError) as caught:
        every_kind["word"].encode("a", dropout=0.1)
    assert str(caught.value) == "dropout: only BPE has merges to leave out; use 0"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same_here_and_in_the_library(tmp_path, kind):
    tokenizer = learn(
        kind,
        CORPUS,
        400,
        Choices(lowercase=True, nfkc=True, split_chinese=True, special_tokens=("<mask>",)),
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


def test_a_row_of_a_tensor_decodes():
    assert BYTES.decode(torch.tensor(BYTES.encode("fox 狐狸"))) == "fox 狐狸"


def unreadable(path) -> str:
    with pytest.raises(QkvError) as caught:
        Tokenizer.load(path)
    return str(caught.value).replace(str(path), path.name)


def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path):
    (tmp_path / "cut.json").write_text('{"version": "1.0", "model": {"ty')
    (tmp_path / "other.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "no_merges.json").write_text(
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}'
    )
    assert (
        unreadable(tmp_path / "cut.json")
        == "cut.json: damaged JSON (line 1, column 30); is the download complete?"
    )
    foreign = "JSON, but not a tokenizer; give a tokenizer.json of qkv or the tokenizers library"
    assert unreadable(tmp_path / "other.json") == f"other.json: {foreign}"
    assert unreadable(tmp_path / "list.json") == f"list.json: {foreign}"
    assert unreadable(tmp_path / "no_merges.json").startswith(
        "no_merges.json: not a whole tokenizer ("
    )
    assert unreadable(tmp_path / "absent.json") == "absent.json: no such file; check the path"
