"""add_prefix_space: a word at the beginning of a text is tokenized as after a space, and every text still comes back."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.data.builtin import NOTES_SENTENCES, builtin_pairs
from qkv.errors import QkvError
from qkv.generate.alignment import id_spans, source_units, target_units
from qkv.generate.stream import TextStream, text_of
from qkv.text.learn import Choices, learn
from qkv.text.steps import merge_steps
from qkv.text.tokenizer import Tokenizer

CORPUS = [
    "machine learning is interesting",
    "i love machine learning",
    "机器学习很有趣",
    "el niño y la niña",
    "мы любим",
]
WITH = learn("bytes", CORPUS * 3, 340, Choices(add_prefix_space=True))
WITHOUT = learn("bytes", CORPUS * 3, 340)
TEXTS = st.text(st.sampled_from(" \n\tab1é好ก“.я\u0301\ufeff"), max_size=12) | st.text(max_size=20)
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO ", "KHMER", "MYANMAR", "TIBETAN")


def tokens(tokenizer, text):
    return tokenizer.tokens(tokenizer.encode(text))


def begins_with_a_word(text):
    """Independent of the regular expressions: Python's own table of characters."""
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
def test_every_text_comes_back(text):
    assert WITH.decode(WITH.encode(text)) == text
    assert WITH.decode_batch(WITH.encode_batch([text, text])) == [text, text]


@given(st.text(st.sampled_from(" \n1ab好ก.я"), max_size=8))
def test_exactly_the_texts_that_begin_with_a_word_get_one_space(text):
    spaced = " " + text if begins_with_a_word(text) else text
    assert "".join(tokens(WITH, text)).replace("Ġ", " ") == "".join(
        tokens(WITHOUT, spaced)
    ).replace("Ġ", " ")


def test_a_word_is_one_token_at_the_beginning_too():
    assert tokens(WITH, "machine learning") == ["Ġmachine", "Ġlearning"]
    assert tokens(WITH, "机器machine") != tokens(WITHOUT, "machine")[:1]
    assert tokens(WITHOUT, "machine learning")[0] != "Ġmachine"


@given(TEXTS)
@example(" machine")
@example("zebra")
@example("  é")
def test_offsets_cover_the_text_and_the_prefix_space_stands_for_nothing(text):
    ids, offsets = WITH.encode(text), WITH.offsets(text)
    assert len(ids) == len(offsets)
    covered = [place for start, end in offsets for place in range(start, end)]
    assert set(covered) == set(range(len(text)))
    pieces = [b"".join(bytes([byte]) for byte in WITH._bytes(token)) for token in WITH.tokens(ids)]
    for place, (piece, (start, end)) in enumerate(zip(pieces, offsets, strict=True)):
        own = piece[1:] if place == 0 and begins_with_a_word(text) else piece
        assert own in text[start:end].encode(), (piece, text[start:end])
        assert own or start == end


def test_words_for_alignments_hold_their_own_tokens():
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
def test_the_spans_of_ids_give_a_lone_prefix_space_no_character(text, spans):
    assert id_spans(WITH, WITH.encode(text)) == spans


@given(TEXTS)
@example("  machine")
@example("   ")
def test_a_stream_gives_what_decoding_gives(text):
    ids = WITH.encode(text)
    stream = TextStream(WITH)
    shown = [*[stream.add(id) for id in ids], stream.finish()]
    assert "".join(shown) == text
    assert all(
        "".join(shown[:end]) == text[: len("".join(shown[:end]))] for end in range(len(shown))
    )


def test_a_continuation_keeps_its_space():
    ids = WITH.encode("machine learning")
    assert text_of(WITH, ids[1:], before=ids[:1]) == " learning"
    assert text_of(WITH, ids) == "machine learning"


def test_the_merges_shown_are_those_of_the_encoding():
    assert merge_steps(WITH, "machine")[-1].pieces == tokens(WITH, "machine")


def test_it_is_all_in_tokenizer_json(tmp_path):
    WITH.save(tmp_path / "tokenizer.json")
    theirs, ours = (
        tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")),
        Tokenizer.load(tmp_path),
    )
    for text in ("machine learning", " machine", "机器学习", "zoo\nmachine", ""):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ids == WITH.encode(text) == ours.encode(text) and theirs.decode(ids) == text
    assert ours.adds_prefix_space and not WITHOUT.adds_prefix_space


def test_transformers_reads_it(tmp_path):
    import transformers

    WITH.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), clean_up_tokenization_spaces=False
    )
    for text in ("machine learning", "  machine", "机器学习"):
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ids == WITH.encode(text) and theirs.decode(ids) == text


def test_a_tokenizer_without_it_is_written_as_before():
    rules = json.loads(WITHOUT._json)
    assert rules["normalizer"] is None and rules["decoder"]["type"] == "ByteLevel"


def test_other_kinds_refuse_it():
    with pytest.raises(QkvError) as error:
        learn("bpe", ["a b"], 20, Choices(add_prefix_space=True))
    assert (
        str(error.value)
        == "--add-prefix-space: 'bpe' marks the words at the beginning of a text already; only for bytes"
    )


def test_the_demo_sentences_are_whole_words_where_the_vocabulary_has_them():
    train, _ = builtin_pairs()
    texts = [text for pair in train for text in pair]
    tokenizer = learn(
        "bytes", texts, 2_000, Choices(special_tokens=("<bos>", "<eos>"), add_prefix_space=True)
    )
    vocabulary = set(tokenizer.core.get_vocab())
    for pair in NOTES_SENTENCES:
        known = [f"Ġ{word}" for word in pair.target.split(" ") if f"Ġ{word}" in vocabulary]
        found = tokens(tokenizer, pair.target)
        assert [token for token in found if token in known] == known
        assert known[0] == found[0]  # the first word too: the vocabulary has all of them
