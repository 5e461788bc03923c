"""Alignment error rate: the published formula, worked examples, and spans that overlap partly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.builtin.links import GoldLink
from qkv.evaluate.alignment_error import (
    AlignmentScore,
    SpanLink,
    alignment_error_rate,
    alignment_score,
    compare_links,
)
from qkv.textbook.alignment import alignment_error_rate as textbook_error_rate

LINKS = st.tuples(st.integers(0, 4), st.integers(0, 4))


def test_the_error_rate_of_a_worked_example():
    """5 sure links, 2 possible; 6 predicted: 4 sure, 1 possible, 1 wrong: 1 - (4 + 5) / (6 + 5)."""
    sure, possible = {(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)}, {(1, 2), (3, 4)}
    predicted = {(0, 0), (1, 1), (2, 2), (3, 3), (1, 2), (0, 4)}
    assert textbook_error_rate(predicted, sure, possible) == pytest.approx(2 / 11)
    score = AlignmentScore(predicted=6, sure=5, predicted_sure=4, predicted_possible=5)
    assert (score.error_rate, score.precision, score.recall) == pytest.approx(
        (2 / 11, 5 / 6, 4 / 5)
    )


@given(st.sets(LINKS, min_size=1), st.sets(LINKS), st.sets(LINKS))
def test_the_error_rate_of_words_is_the_textbooks(predicted, sure, possible):
    gold = [
        GoldLink(word, word + 1, target, (word, target) in sure) for word, target in sure | possible
    ]
    ours = compare_links([SpanLink(word, word + 1, target) for word, target in predicted], gold)
    assert ours.error_rate == pytest.approx(textbook_error_rate(predicted, sure, possible))


@pytest.mark.parametrize(
    "span, counts",
    [
        ((0, 2), (1, 1, 1, 1)),  # 这只: the word itself
        ((0, 1), (1, 1, 1, 1)),  # a part of it
        ((0, 4), (1, 1, 1, 1)),  # more than it
        ((2, 4), (1, 1, 0, 1)),  # the possible one
        ((4, 6), (1, 1, 0, 0)),  # another word
    ],
)
def test_a_predicted_link_is_right_if_the_gold_link_has_a_character_of_its_span(span, counts):
    gold = [GoldLink(0, 2, 0), GoldLink(2, 4, 0, sure=False)]
    assert compare_links([SpanLink(*span, 0)], gold) == AlignmentScore(*counts)


def test_a_sure_link_hit_twice_counts_once_and_no_links_without_gold_links_are_no_error():
    assert compare_links(
        [SpanLink(0, 1, 0), SpanLink(1, 2, 0)], [GoldLink(0, 2, 0)]
    ) == AlignmentScore(2, 1, 1, 2)
    assert compare_links([], []).error_rate == 0.0
    assert compare_links([], [GoldLink(0, 1, 0)]).error_rate == 1.0


class Pair:
    source, target, links = (
        "我爱艺术",
        "i love art",
        [GoldLink(0, 1, 0), GoldLink(1, 2, 1), GoldLink(2, 4, 2)],
    )


class Aligner:
    """Two correct links and a wrong one."""

    def span_links(self, source, target):
        return [(0, 1, 0), (1, 2, 1), (0, 1, 2)]


def test_the_counts_of_all_pairs_are_summed():
    assert alignment_score(Aligner(), [Pair(), Pair()]) == AlignmentScore(6, 6, 4, 4)
    assert alignment_error_rate(Aligner(), [Pair(), Pair()]) == pytest.approx(1 / 3)
