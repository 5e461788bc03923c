"""Sentence segmentation: boundaries, and concatenation to the original text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.text.sentences import (
    join_sentences,
    split_clauses,
    split_sentences,
    split_to_fit,
    split_words,
)

TEXTS = st.text(alphabet="aB1 .,!?。！？，；…“”\"')\n我爱", max_size=60)


@given(TEXTS)
def test_the_parts_concatenate_to_the_text(text):
    for split in (split_sentences, split_clauses, split_words):
        assert "".join(split(text)) == text


@given(TEXTS, st.integers(1, 20))
def test_parts_fit_the_limit_and_concatenate_to_the_text(text, limit):
    parts = split_to_fit(text, len, limit)
    assert "".join(parts) == text and all(len(part) <= limit for part in parts)


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("I came. I saw! Did I win?", ["I came. ", "I saw! ", "Did I win?"]),
        ("我来了。我看见了！我赢了吗？", ["我来了。", "我看见了！", "我赢了吗？"]),
        ("他说：“走吧。”然后他走了。", ["他说：“走吧。”", "然后他走了。"]),
        (
            "Mr. Smith met J. R. Jones at 3.14 p.m. on Monday. It rained.",
            ["Mr. Smith met J. R. Jones at 3.14 p.m. on Monday. ", "It rained."],
        ),
        (
            "See e.g. the U.S. and example.com for more. Good.",
            ["See e.g. the U.S. and example.com for more. ", "Good."],
        ),
        ("Wait... what? Yes.", ["Wait... what? ", "Yes."]),
        ("真的吗？！太好了……我们走。", ["真的吗？！", "太好了……", "我们走。"]),
        ("GPT很好用.我喜欢它!", ["GPT很好用.", "我喜欢它!"]),
        ("no end at all", ["no end at all"]),
        ("", [""]),
    ],
)
def test_sentence_boundaries(text, sentences):
    assert split_sentences(text) == sentences


def test_a_long_sentence_is_split_at_clauses_then_words_then_characters():
    def words(text):
        return len(text.split())

    text = "one two three, four five, six seven eight nine ten"
    assert split_to_fit(text, words, 5) == [
        "one two three, four five, ",
        "six seven eight nine ten",
    ]
    assert split_to_fit(text, words, 4) == [
        "one two three, ",
        "four five, ",
        "six seven eight nine ",
        "ten",
    ]
    assert split_to_fit("abcdefg", len, 3) == ["abc", "def", "g"]


@pytest.mark.parametrize(
    "parts, text",
    [
        (["One.", "Two."], "One. Two."),
        (["一。", "二。"], "一。二。"),
        (["他用", "GPU", "训练。"], "他用GPU训练。"),
        (["", "a", ""], "a"),
    ],
)
def test_translated_parts_are_joined_with_spaces_except_in_chinese(parts, text):
    assert join_sentences(parts) == text
