"""The membership test of the built-in grammar accepts what the grammar generates, and nothing else."""

from zlib import crc32

import pytest

from qkv.data.builtin import NOTES_SENTENCES, compositions
from qkv.data.builtin.phrases import PATTERNS, Dice
from qkv.data.builtin.recognizer import is_sentence, recognize


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_fresh_sentences_of_every_pattern_are_recognized(name):
    speak, dice = (
        PATTERNS[name][0],
        Dice(crc32(name.encode()) + 1),
    )  # another seed than the corpus has
    for _ in range(4):
        sentence = speak(dice)[0]
        found = recognize(sentence)
        assert found is not None, sentence


def test_sentences_that_no_pattern_generates_are_not_recognized():
    said = {pair.source for pairs in compositions().values() for pair in pairs}
    some = sorted(said)[::3_000]  # a search that finds nothing tries all patterns: a second each
    for sentence in [
        "",
        "今天天气",
        "好今天天气真",
        "他们是医院",
        *(sentence[1:] for sentence in some),
        *(sentence + "了了" for sentence in some),
    ]:
        assert recognize(sentence) is None or sentence in said, sentence


def test_sentences_of_the_corpus_are_sentences():
    said = [pair.source for pairs in compositions().values() for pair in pairs]
    assert (
        all(map(is_sentence, said))
        and all(recognize(sentence) for sentence in said[::700])
        and not is_sentence("今天天气")
    )


def test_a_choice_that_the_pattern_replaces_is_found():
    assert (
        recognize("这个编码器比他们的编码器快一点") == "machine_compared"
    )  # the first of the two owners is not shown


def test_the_demo_sentence_about_the_weather_is_one():
    assert recognize(NOTES_SENTENCES[2].source) == "weather_today"


def test_what_is_recognized_can_be_drawn():
    """Independent of the search: a sentence that it accepts and the corpus lacks is drawn by the pattern that it names."""
    name = recognize("今天天气真好")
    speak, dice = PATTERNS[name][0], Dice(7)
    assert any(speak(dice)[0] == "今天天气真好" for _ in range(20_000))
