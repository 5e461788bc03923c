"""Streamed pieces join to the text; incomplete characters and stop strings are held back."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.generate.stream import TextStream, partial_stop_length, text_of
from qkv.text.display import BYTE_DECODER
from qkv.text.files import read_tokenizer
from qkv.text.train_tokenizer import train_tokenizer

TEXTS = [
    "今天天气真好，我们去公园吧。",
    "机器学习很有趣！👩‍🚀🚀 又一次 🇨🇳 café naïve",
    "ROMEO:\nBut soft, what light?\n\n  indented",
    "😀😃😄 一二三 😀",
    "a\tb  c   d",
    "Ünïcödé und ähnliches",
    "\ufffd is a sign of its own \ufffd\ufffd",
]
BYTES = train_tokenizer("byte_bpe", TEXTS, 300)
BARE = train_tokenizer("byte_bpe", ["x"], 260)  # each byte is a token
BYTE_SYMBOLS = {byte: symbol for symbol, byte in BYTE_DECODER.items()}
WORDS = {
    kind: train_tokenizer(kind, TEXTS[:6], 400) for kind in ("word", "bpe", "wordpiece", "char")
}


@pytest.fixture(scope="module")
def llama(shared):
    """A SentencePiece vocabulary of 512 pieces with byte fallback, as for Chinese."""
    return read_tokenizer(shared / "stories260K_hf" / "tokenizer.json")


def streamed(tokenizer, ids, before=()):
    stream = TextStream(tokenizer, before=before)
    return [*[stream.add(id) for id in ids], stream.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [BYTES, BARE], ids=["merged", "bare"])
def test_pieces_join_to_the_text_and_have_no_incomplete_character(tokenizer, text):
    pieces = streamed(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text and len(pieces) > 5
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    # No complete character is held back.
    assert all(len(piece.encode()) <= 4 for piece in pieces) or tokenizer is not BARE


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", WORDS)
def test_the_stream_of_a_word_tokenizer_equals_decode(kind, text):
    ids = WORDS[kind].encode(text)
    assert "".join(streamed(WORDS[kind], ids)) == WORDS[kind].decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_fallback_tokens_of_a_llama_vocabulary_become_characters(llama, text):
    ids = llama.encode(text)
    assert "".join(streamed(llama, ids)) == llama.decode(ids) == text
    for cut in range(1, len(ids)):  # for any end of a prompt the rest keeps its space
        if "\ufffd" not in llama.decode(ids[:cut]):
            assert llama.decode(ids[:cut]) + text_of(llama, ids[cut:], before=ids[:cut]) == text


@given(st.text(max_size=30))
def test_any_text_round_trips_through_a_stream(text):
    text = text.encode(errors="replace").decode()
    assert "".join(streamed(BARE, BARE.encode(text))) == text


@given(st.binary(max_size=30))
@example(b"\xed\xa0")  # part of a surrogate: decoded to two U+FFFD, but the stream waits
def test_any_bytes_stream_as_they_decode_except_for_an_incomplete_end(raw):
    ids = [BARE.core.token_to_id(BYTE_SYMBOLS[byte]) for byte in raw]
    text = "".join(streamed(BARE, ids))
    assert raw.decode(errors="replace") == BARE.decode(ids)
    assert BARE.decode(ids) in (text, text + "\ufffd") or (
        raw[-2] == 0xED and BARE.decode(ids) == text + "\ufffd\ufffd"
    )


def test_an_incomplete_character_at_the_end_is_dropped():
    assert "".join(streamed(BARE, BARE.encode("好好")[:-1])) == "好"
    assert "".join(streamed(BARE, BARE.encode("a🚀")[:-2])) == "a"


def test_an_invalid_byte_does_not_affect_its_neighbors(llama):
    invalid, valid = llama.core.token_to_id("<0xFF>"), llama.encode("好")[1:]
    ids = [*valid, invalid, *valid, invalid, invalid, *valid]
    assert "".join(streamed(llama, ids)) == "好\ufffd好\ufffd\ufffd好"
    assert streamed(llama, [invalid] * 5) == ["\ufffd"] * 5 + [""]  # not held back


def test_special_tokens_have_no_text_and_no_space(llama):
    ids = llama.encode("one day")
    assert "".join(streamed(llama, [1, *ids[:2], 2, *ids[2:], 2])) == "one day"


# ── Stop strings ─────────────────────────────────────────────────────────────────────────────────
def stream_until_stop(text: str, stop: list[str]) -> tuple[list[str], bool]:
    stream, found = TextStream(BARE, stop), []
    for id in BARE.encode(text):
        found.append(stream.add(id))
        if stream.stopped:
            break
    return [*found, stream.finish()], stream.stopped


@pytest.mark.parametrize(
    "text, stop, expected",
    [
        ("one two", [" two"], "one"),
        ("one two", ["two", "ne"], "o"),
        ("line\nnext", ["\n"], "line"),
        ("aab", ["aab"], ""),
        ("aaab", ["aab"], "a"),
        ("<en <end> x", ["<end>"], "<en "),
        ("好的。好", ["。"], "好的"),
        ("x🚀y", ["🚀"], "x"),
    ],
)
def test_a_text_ends_before_its_stop_string(text, stop, expected):
    found, stopped = stream_until_stop(text, stop)
    assert "".join(found) == expected and stopped


def test_a_partial_stop_string_is_held_back():
    found, stopped = stream_until_stop("a <en> b <e", ["<end>"])
    assert "".join(found) == "a <en> b <e" and not stopped
    assert found[:6] == ["a", " ", "", "", "", "<en>"] and found[-1] == "<e"


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_a_text_ends_at_the_first_stop_string(text, stop):
    found, stopped = stream_until_stop(text, stop)
    ends = [text.find(string) + len(string) for string in stop if string in text]
    assert stopped == bool(ends)
    if ends:  # the earliest start of the stop strings that are complete first
        prefix = text[: min(ends)]
        assert "".join(found) == text[: min(prefix.find(s) for s in stop if s in prefix)]
    else:
        assert "".join(found) == text


def test_partial_stop_length_is_the_longest_suffix_that_begins_a_stop_string():
    assert partial_stop_length("one <", ["<end>"]) == 1
    assert partial_stop_length("<en", ["<end>", "n"]) == 3
    assert partial_stop_length("end>", ["<end>"]) == 0
