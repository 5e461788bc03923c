"""Streams: joined they are the whole text, and no piece shows half a character or the beginning of a stop."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qkv.generate.stream import TextStream, begun, text_of
from qkv.text.files import read_tokenizer
from qkv.text.learn import learn
from qkv.text.people import BYTE_OF_SIGN

TEXTS = [
    "今天天气真好，我们去公园吧。",
    "机器学习很有趣！👩‍🚀🚀 又一次 🇨🇳 café naïve",
    "ROMEO:\nBut soft, what light?\n\n  indented",
    "😀😃😄 一二三 😀",
    "a\tb  c   d",
    "Ünïcödé und ähnliches",
    "\ufffd is a sign of its own \ufffd\ufffd",
]
BYTES = learn("bytes", TEXTS, 300)
BARE = learn("bytes", ["x"], 260)  # every byte a token: characters of two, three and four tokens
SIGN_OF_BYTE = {byte: sign for sign, byte in BYTE_OF_SIGN.items()}
WORDS = {kind: learn(kind, TEXTS[:6], 400) for kind in ("word", "bpe", "wordpiece", "char")}


@pytest.fixture(scope="module")
def llama(shared):
    """A SentencePiece vocabulary of 512 pieces: what it lacks, such as Chinese, is written in byte pieces."""
    return read_tokenizer(shared / "stories260K_hf" / "tokenizer.json")


def pieces(tokenizer, ids, before=()):
    stream = TextStream(tokenizer, before=before)
    return [*[stream.add(id) for id in ids], stream.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("tokenizer", [BYTES, BARE], ids=["merged", "bare"])
def test_pieces_joined_are_the_text_and_none_shows_half_a_character(tokenizer, text):
    shown = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(shown) == text and len(shown) > 5
    assert all("\ufffd" not in piece for piece in shown) or "\ufffd" in text
    assert (
        all(len(piece.encode()) <= 4 for piece in shown) or tokenizer is not BARE
    )  # nothing waits without need


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", WORDS)
def test_tokenizers_that_join_words_stream_what_they_decode(kind, text):
    ids = WORDS[kind].encode(text)
    assert "".join(pieces(WORDS[kind], ids)) == WORDS[kind].decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_pieces_of_a_llama_vocabulary_become_whole_characters(llama, text):
    ids = llama.encode(text)
    shown = pieces(llama, ids)
    assert "".join(shown) == llama.decode(ids) == text
    for cut in range(1, len(ids)):  # wherever a prompt ends, the rest joins on with its space
        if "\ufffd" not in llama.decode(ids[:cut]):
            assert llama.decode(ids[:cut]) + text_of(llama, ids[cut:], before=ids[:cut]) == text


@given(st.text(max_size=30))
def test_any_text_comes_back_from_its_stream(text):
    text = text.encode(errors="replace").decode()
    assert "".join(pieces(BARE, BARE.encode(text))) == text


@given(st.binary(max_size=30))
@example(
    b"\xed\xa0"
)  # half of a surrogate: two signs when it is cut, though Python waits for a third byte
def test_any_bytes_come_out_as_any_decoder_reads_them_but_for_a_cut_end(raw):
    ids = [BARE.core.token_to_id(SIGN_OF_BYTE[byte]) for byte in raw]
    shown = "".join(pieces(BARE, ids))
    assert raw.decode(errors="replace") == BARE.decode(ids)
    assert BARE.decode(ids) in (shown, shown + "\ufffd") or (
        raw[-2] == 0xED and BARE.decode(ids) == shown + "\ufffd\ufffd"
    )


def test_an_unfinished_character_at_the_end_is_left_off():
    assert "".join(pieces(BARE, BARE.encode("好好")[:-1])) == "好"
    assert "".join(pieces(BARE, BARE.encode("a🚀")[:-2])) == "a"


def test_a_foreign_byte_spoils_no_neighbour(llama):
    bad, good = llama.core.token_to_id("<0xFF>"), llama.encode("好")[1:]
    shown = "".join(pieces(llama, [*good, bad, *good, bad, bad, *good]))
    assert shown == "好\ufffd好\ufffd\ufffd好"
    assert pieces(llama, [bad] * 5) == ["\ufffd"] * 5 + [
        ""
    ]  # what is surely no character does not wait


def test_special_tokens_have_no_text_and_take_no_space(llama):
    ids = llama.encode("one day")
    assert "".join(pieces(llama, [1, *ids[:2], 2, *ids[2:], 2])) == "one day"


# ── Stops ────────────────────────────────────────────────────────────────────────────────────────────────────────
def shown(text: str, stop: list[str]) -> tuple[list[str], bool]:
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
def test_a_text_ends_before_its_stop(text, stop, expected):
    found, stopped = shown(text, stop)
    assert "".join(found) == expected and stopped


def test_the_beginning_of_a_stop_is_held_back_until_it_is_none():
    found, stopped = shown("a <en> b <e", ["<end>"])
    assert "".join(found) == "a <en> b <e" and not stopped
    assert found[:6] == ["a", " ", "", "", "", "<en>"] and found[-1] == "<e"


@given(
    st.text("ab", max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_whatever_the_stops_the_text_is_cut_at_the_first(text, stop):
    found, stopped = shown(text, stop)
    ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
    assert stopped == bool(ends)
    if (
        ends
    ):  # the stop that is whole first ends the text, at the earliest place of those whole by then
        whole = min(end for end, _ in ends)
        assert (
            "".join(found)
            == text[: min(text[:whole].find(one) for one in stop if one in text[:whole])]
        )
    else:
        assert "".join(found) == text


def test_how_much_of_a_stop_is_begun():
    assert (
        begun("one <", ["<end>"]) == 1
        and begun("<en", ["<end>", "n"]) == 3
        and begun("end>", ["<end>"]) == 0
    )
