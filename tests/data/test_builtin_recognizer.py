"""The membership test of the built-in grammar accepts exactly what the grammar generates."""

from zlib import crc32

import pytest

from qkv.data.builtin import DEMO_SENTENCES, compositions
from qkv.data.builtin.phrases import PATTERNS, Sampler
from qkv.data.builtin.recognizer import is_sentence, recognize


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_new_sentences_of_every_pattern_are_recognized(name):
    generate = PATTERNS[name][0]
    rng = Sampler(crc32(name.encode()) + 1)  # not the seed of the corpus
    for _ in range(4):
        sentence = generate(rng)[0]
        found = recognize(sentence)
        assert found is not None, sentence


def test_sentences_that_no_pattern_generates_are_not_recognized():
    sources = {pair.source for pairs in compositions().values() for pair in pairs}
    sample = sorted(sources)[::3_000]  # a failed search tries all patterns: a second each
    for sentence in [
        "",
        "今天天气",
        "好今天天气真",
        "他们是医院",
        *(sentence[1:] for sentence in sample),
        *(sentence + "了了" for sentence in sample),
    ]:
        assert recognize(sentence) is None or sentence in sources, sentence


def test_sentences_of_the_corpus_are_sentences():
    sources = [pair.source for pairs in compositions().values() for pair in pairs]
    assert (
        all(map(is_sentence, sources))
        and all(recognize(sentence) for sentence in sources[::700])
        and not is_sentence("今天天气")
    )


def test_a_choice_that_the_pattern_replaces_is_recognized():
    # the first of the two owners is not in the sentence
    assert recognize("这个编码器比他们的编码器快一点") == "machine_compared"


def test_the_demo_sentence_about_the_weather_is_recognized():
    assert recognize(DEMO_SENTENCES[2].source) == "weather_today"


def test_a_recognized_sentence_can_be_sampled():
    """Check without the search: the pattern it returns generates a sentence not in the corpus."""
    name = recognize("今天天气真好")
    generate, rng = PATTERNS[name][0], Sampler(7)
    assert any(generate(rng)[0] == "今天天气真好" for _ in range(20_000))
