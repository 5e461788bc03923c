"""Display forms of byte-level tokens."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from qkv.text.display import display_pieces
from qkv.text.train_tokenizer import train_tokenizer

BYTES = train_tokenizer("byte_bpe", ["你好，世界", "a few words"], vocab_size=290)


def test_a_part_of_a_character_is_marked_with_its_byte_range():
    assert display_pieces(["好".encode()[:1], "好".encode()[1:]]) == ["好[1/3]", "好[2-3/3]"]
    assert display_pieces(["a好".encode()[:2], "好b".encode()[1:]]) == ["a好[1/3]", "好[2-3/3]b"]
    assert display_pieces([b"\xf0", b"\x9f\x91", b"\x8d\n"]) == ["👍[1/4]", "👍[2-3/4]", "👍[4/4]⏎"]
    assert display_pieces([b"\xc3", b"", b"\xa9"]) == ["é[1/2]", "", "é[2/2]"]


def test_bytes_that_are_not_utf8_are_displayed_in_hex():
    assert display_pieces([b"\xe5", b"a", b"\xff\x00"]) == ["<E5>", "a", "<FF><00>"]
    assert display_pieces(["好".encode()[:2], "<eos>", "好".encode()[2:]]) == [
        "<E5><A5>",
        "<eos>",
        "<BD>",
    ]


def test_whitespace_and_the_replacement_character_are_made_visible():
    assert display_pieces([b" \t\r\n", "\ufffd".encode()]) == ["␣⇥␍⏎", "<U+FFFD>"]


@given(st.text())
def test_every_letter_is_displayed_and_no_replacement_character(text):
    ids = BYTES.encode(text)
    displayed = BYTES.display_tokens(ids)
    assert len(displayed) == len(ids) and all(displayed)
    assert "\ufffd" not in "".join(displayed)
    letters = {c for c in text if unicodedata.category(c)[0] == "L"}
    assert letters <= set("".join(displayed))
