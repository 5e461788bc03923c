"""Gold word alignments of the built-in corpus, against manual alignments."""

from collections import Counter
from pathlib import Path

import pytest

from qkv.data.builtin import DEMO_SENTENCES, Pair, builtin_pairs, compositions
from qkv.data.builtin.links import GoldLink, gold_links, segments
from qkv.text.word_boundaries import word_spans

TRAIN, HELD_OUT = builtin_pairs()

# Manual alignments: for each English word its Chinese word, - for none; 他#2 is the second 他.
MANUAL = (
    Path(__file__).with_name("builtin_links.txt").read_text(encoding="utf-8").strip().split("\n")
)
TARGETS = {pair.source: pair.target for pairs in compositions().values() for pair in pairs} | dict(
    DEMO_SENTENCES
)


def manual_links(source: str, entries: list[str]) -> list[GoldLink]:
    """Return the links of a line of MANUAL."""
    links = []
    for word, entry in enumerate(entries):
        chinese, _, _ = entry.rpartition("=")
        text, _, number = chinese.partition("#")
        start = -1
        for _ in range(int(number or 1)):
            start = source.find(text, start + 1)
        assert chinese == "-" or start >= 0, f"{chinese} is not in {source}"
        links += [] if chinese == "-" else [GoldLink(start, start + len(text), word)]
    return links


@pytest.mark.parametrize("line", MANUAL, ids=lambda line: line.split(":")[0])
def test_sure_links_equal_the_manual_links(line):
    source, entries = line.split(":")[0], line.split(": ")[1].split(" ")
    target = TARGETS[source]
    assert [target[start:end] for start, end in word_spans(target)] == [
        entry.rpartition("=")[2] for entry in entries
    ]
    assert [link for link in gold_links(source, target) if link.sure] == manual_links(
        source, entries
    )


@pytest.mark.parametrize(
    "source, target, expected",
    [
        ("这只猫想穿过街道", "the cat wants to cross the street", {("只", "the"), ("想", "to")}),
        ("他喝了咖啡", "he drank coffee", {("了", "drank")}),
        ("这杯茶太热了", "the cup of tea is too hot", {("了", "too")}),
        ("音乐比物理难", "music is more difficult than physics", {("难", "more")}),
        (
            "汤姆是村子里最高的孩子",
            "tom is the tallest child in the village",
            {("最", "tallest"), ("的", "tallest")},
        ),
        ("他们每天在花园里下象棋", "they play chess in the garden every day", {("里", "in")}),
        ("玛丽紧张吗", "is mary nervous", {("吗", "is")}),
        ("她经常和汤姆一起跑步", "she often runs with tom", {("一起", "with")}),
    ],
)
def test_possible_links_equal_the_manual_links(source, target, expected):
    words = [target[start:end] for start, end in word_spans(target)]
    assert {
        (source[link.start : link.end], words[link.word])
        for link in gold_links(source, target)
        if not link.sure
    } == expected


def test_every_pattern_has_a_manually_aligned_sentence():
    sources = {line.split(":")[0] for line in MANUAL}
    assert [
        name
        for name, pairs in compositions().items()
        if not any(pair.source in sources for pair in pairs)
    ] == []


def test_links_are_a_property_of_a_pair():
    assert DEMO_SENTENCES[0].links == [
        GoldLink(0, 1, 0),
        GoldLink(1, 2, 1),
        GoldLink(2, 4, 2),
        GoldLink(4, 6, 3),
    ]
    assert Pair("我爱艺术", "i love art").links == [
        GoldLink(0, 1, 0),
        GoldLink(1, 2, 1),
        GoldLink(2, 4, 2),
    ]


def unlinked(pairs: list[Pair]) -> tuple[Counter[str], Counter[str]]:
    """Count the English words without a sure link, and the Chinese words without any link."""
    english, chinese = Counter[str](), Counter[str]()
    for pair in pairs:
        links, spans = pair.links, word_spans(pair.target)
        sure, starts = [link.word for link in links if link.sure], {link.start for link in links}
        assert len(sure) == len(set(sure)), f"{pair}: a word with two sure links"
        english.update(
            pair.target[slice(*spans[word])] for word in range(len(spans)) if word not in sure
        )
        chinese.update(
            segment.text for segment in segments(pair.source) if segment.start not in starts
        )
    return english, chinese


def test_only_function_words_have_no_link_in_the_whole_corpus():
    english, chinese = unlinked(TRAIN + HELD_OUT)
    assert set(english) <= {
        "the",
        "a",
        "an",
        "of",
        "to",
        "in",
        "on",
        "for",
        "is",
        "am",
        "are",
        "was",
        "were",
        "be",
        "it",
        "has",
        "have",
        "do",
        "does",
        "more",
        "costs",
    }
    assert set(chinese) <= {"，", "但是", "的", "吗", "把", "的时候", "在", "很"}
    assert sum(english.values()) < 0.15 * sum(
        len(word_spans(pair.target)) for pair in TRAIN + HELD_OUT
    )
