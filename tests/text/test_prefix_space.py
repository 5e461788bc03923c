"""add_prefix_space: a word at the beginning of a text is encoded as after a space, losslessly."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.data.builtin import DEMO_SENTENCES, builtin_pairs
from qkv.errors import QkvError
from qkv.generate.alignment import id_spans, source_units, target_units
from qkv.generate.stream import TextStream, text_of
from qkv.text.merge_steps import merge_steps
from qkv.text.tokenizer import Tokenizer
from qkv.text.train_tokenizer import TokenizerOptions, train_tokenizer

CORPUS = [
    "machine learning is interesting",
    "i love machine learning",
    "机器学习很有趣",
    "el niño y la niña",
    "мы любим",
]
WITH = train_tokenizer("byte_bpe", CORPUS * 3, 340, TokenizerOptions(add_prefix_space=True))
WITHOUT = train_tokenizer("byte_bpe", CORPUS * 3, 340)
COMMON = st.text(st.sampled_from(" \n\tab1é好ก“.я\u0301\ufeff"), max_size=12)
TEXTS = COMMON | st.text(max_size=20)
# The tokenizers library has a newer version of Unicode: it knows letters that Python does not.
ASSIGNED = COMMON | st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=20)
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR", "TIBETAN")


def tokens(tokenizer, text):
    return tokenizer.tokens(tokenizer.encode(text))


def begins_with_a_word(text):
    """Reference with Python's character tables instead of the regular expressions."""
    first = text.lstrip(" ")[:1]
    return (
        first.isalpha()
        and unicodedata.category(first)[0] == "L"
        and not unicodedata.name(first, "").startswith(UNSPACED)
    )


@given(TEXTS)
@example(" machine")
@example("  machine")
@example("")
@example(" ")
@example(" 好")
@example("\nmachine\n machine")
def test_every_text_round_trips(text):
    assert WITH.decode(WITH.encode(text)) == text
    assert WITH.decode_batch(WITH.encode_batch([text, text])) == [text, text]


@given(st.text(st.sampled_from(" \n1ab好ก.я"), max_size=8))
def test_exactly_the_texts_that_begin_with_a_word_get_one_space(text):
    spaced = " " + text if begins_with_a_word(text) else text
    assert "".join(tokens(WITH, text)).replace("Ġ", " ") == "".join(
        tokens(WITHOUT, spaced)
    ).replace("Ġ", " ")


def test_a_word_at_the_beginning_is_one_token():
    assert tokens(WITH, "machine learning") == ["Ġmachine", "Ġlearning"]
    assert tokens(WITH, "机器machine") != tokens(WITHOUT, "machine")[:1]
    assert tokens(WITHOUT, "machine learning")[0] != "Ġmachine"


@given(ASSIGNED)
@example(" machine")
@example("zebra")
@example("  é")
def test_offsets_cover_the_text_and_the_prefix_space_covers_nothing(text):
    ids, offsets = WITH.encode(text), WITH.offsets(text)
    assert len(ids) == len(offsets)
    covered = [position for start, end in offsets for position in range(start, end)]
    assert set(covered) == set(range(len(text)))
    pieces = [b"".join(bytes([byte]) for byte in WITH._bytes(token)) for token in WITH.tokens(ids)]
    for index, (piece, (start, end)) in enumerate(zip(pieces, offsets, strict=True)):
        own = piece[1:] if index == 0 and begins_with_a_word(text) else piece
        assert own in text[start:end].encode(), (piece, text[start:end])
        assert own or start == end


def test_alignment_words_have_their_own_tokens():
    assert [unit.text for unit in source_units(WITH, "machine zoo")] == ["machine", "zoo"]
    for text in ("machine zoo", "zoo machine", "  zoo", "zoo 1"):
        ids = WITH.encode(text)
        assert [unit.text for unit in target_units(WITH, ids)] == [
            unit.text for unit in source_units(WITH, text)
        ]


@pytest.mark.parametrize(
    "text, spans",
    [
        ("zoo", [(0, 0), (0, 1), (1, 2), (2, 3)]),
        (" zoo", [(0, 1), (1, 1), (1, 2), (2, 3), (3, 4)]),
        ("machine", [(0, 7)]),
    ],
)
def test_the_span_of_a_lone_prefix_space_is_empty(text, spans):
    assert id_spans(WITH, WITH.encode(text)) == spans


@given(TEXTS)
@example("  machine")
@example("   ")
def test_streaming_gives_the_decoded_text(text):
    ids = WITH.encode(text)
    stream = TextStream(WITH)
    streamed = [*[stream.add(id) for id in ids], stream.finish()]
    assert "".join(streamed) == text
    assert all(
        "".join(streamed[:end]) == text[: len("".join(streamed[:end]))]
        for end in range(len(streamed))
    )


def test_a_continuation_keeps_its_space():
    ids = WITH.encode("machine learning")
    assert text_of(WITH, ids[1:], before=ids[:1]) == " learning"
    assert text_of(WITH, ids) == "machine learning"


def test_merge_steps_end_with_the_encoding():
    assert merge_steps(WITH, "machine")[-1].pieces == tokens(WITH, "machine")


def test_tokenizer_json_contains_the_prefix_space(tmp_path):
    WITH.save(tmp_path / "tokenizer.json")
    theirs, ours = (
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
        Tokenizer.load(tmp_path),
    )
    for text in ("machine learning", " machine", "机器学习", "zoo\nmachine", ""):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ids == WITH.encode(text) == ours.encode(text) and theirs.decode(ids) == text
    assert ours.adds_prefix_space and not WITHOUT.adds_prefix_space


def test_transformers_gives_the_same_ids(tmp_path):
    import transformers

    WITH.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), clean_up_tokenization_spaces=False
    )
    for text in ("machine learning", "  machine", "机器学习"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == WITH.encode(text) and theirs.decode(ids) == text


def test_without_the_option_tokenizer_json_is_unchanged():
    config = json.loads(WITHOUT._json)
    assert config["normalizer"] is None and config["decoder"]["type"] == "ByteLevel"


def test_other_kinds_reject_it():
    with pytest.raises(QkvError) as error:
        train_tokenizer("bpe", ["a b"], 20, TokenizerOptions(add_prefix_space=True))
    assert str(error.value) == (
        "--add-prefix-space: 'bpe' does not distinguish words at the beginning of a text; "
        "use it with byte_bpe"
    )


def test_known_words_of_the_demo_sentences_are_single_tokens():
    train, _ = builtin_pairs()
    texts = [text for pair in train for text in pair]
    tokenizer = train_tokenizer(
        "byte_bpe",
        texts,
        2_000,
        TokenizerOptions(special_tokens=("<bos>", "<eos>"), add_prefix_space=True),
    )
    vocabulary = set(tokenizer.core.get_vocab())
    for pair in DEMO_SENTENCES:
        known = [f"Ġ{word}" for word in pair.target.split(" ") if f"Ġ{word}" in vocabulary]
        found = tokens(tokenizer, pair.target)
        assert [token for token in found if token in known] == known
        assert known[0] == found[0]  # the vocabulary has all first words
