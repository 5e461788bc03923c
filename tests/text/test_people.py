"""Byte pieces as a person reads them."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from qkv.text.learn import learn
from qkv.text.people import readable

BYTES = learn("bytes", ["你好，世界", "a few words"], vocab_size=290)


def test_a_part_of_a_character_is_marked_with_its_bytes():
    assert readable(["好".encode()[:1], "好".encode()[1:]]) == ["好[1/3]", "好[2-3/3]"]
    assert readable(["a好".encode()[:2], "好b".encode()[1:]]) == ["a好[1/3]", "好[2-3/3]b"]
    assert readable([b"\xf0", b"\x9f\x91", b"\x8d\n"]) == ["👍[1/4]", "👍[2-3/4]", "👍[4/4]⏎"]


def test_bytes_that_are_no_character_are_shown_as_numbers():
    assert readable([b"\xe5", b"a", b"\xff\x00"]) == ["<E5>", "a", "<FF><00>"]
    assert readable(["好".encode()[:2], "<eos>", "好".encode()[2:]]) == [
        "<E5><A5>",
        "<eos>",
        "<BD>",
    ]


def test_spaces_and_the_replacement_sign_itself_are_made_visible():
    assert readable([b" \t\r\n", "\ufffd".encode()]) == ["␣⇥␍⏎", "<U+FFFD>"]


@given(st.text())
def test_people_see_every_visible_character_and_no_replacement_sign(text):
    ids = BYTES.encode(text)
    shown = BYTES.tokens_for_people(ids)
    assert len(shown) == len(ids) and all(shown) and "\ufffd" not in "".join(shown)
    letters = {c for c in text if unicodedata.category(c)[0] == "L"}
    assert letters <= set("".join(shown))
