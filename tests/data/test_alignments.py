"""Word alignments: reading, errors, mapping to tokens, gold attention weights."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.alignments import gold_weights, overlaps, parse_links, read_alignment, token_links
from qkv.data.corpus import Pairs
from qkv.errors import QkvError
from qkv.text.word_boundaries import word_spans


def write(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path):
    """Three pairs; the second of the four lines has an empty side."""
    return Pairs(
        write(tmp_path / "a.tsv", "我爱书\ti love books", "空\t", "他 来\the comes", "好\tgood")
    )


def test_links_of_dropped_pairs_are_skipped(pairs, tmp_path):
    file = write(tmp_path / "a.align", "0-0 1-1 2-2", "", "0-0  1-1", "")
    assert list(read_alignment(pairs, file)) == [[(0, 0), (1, 1), (2, 2)], [(0, 0), (1, 1)], []]


def test_links_of_a_subset_of_the_pairs(pairs, tmp_path):
    file = write(tmp_path / "a.align", "0-0", "", "1-1", "0-0")
    rows = np.array([False, True, False])  # of the pairs with two sides
    assert list(read_alignment(pairs.subset(rows), file)) == [[(1, 1)]]
    assert list(read_alignment(pairs.subset(~rows), file)) == [[(0, 0)], [(0, 0)]]


@pytest.mark.parametrize(
    "lines, message",
    [
        (
            ["0-0", "", "0:0", ""],
            "{}, line 3: '0:0' is not a link; "
            "write source-target word numbers from 0, such as 0-0 1-2",
        ),
        (
            ["0-0", "", "-1-0", ""],
            "{}, line 3: '-1-0' is not a link; "
            "write source-target word numbers from 0, such as 0-0 1-2",
        ),
        (
            ["0-3", "", "", ""],
            "{}, line 1: link 0-3, but the pair has 3 and 3 words; count words from 0; "
            "each Chinese character and punctuation mark is a word",
        ),
        (
            ["0-0", ""],
            "{}: ends after line 2, the pairs do not; "
            "give one line for each pair, empty where nothing is aligned",
        ),
        (
            ["", "", "", "", "0-0"],
            "{}: has more lines than the 4 pairs; "
            "give one line for each pair, empty where nothing is aligned",
        ),
    ],
)
def test_a_bad_file_is_rejected_with_its_line(pairs, tmp_path, lines, message):
    file = write(tmp_path / "a.align", *lines)
    with pytest.raises(QkvError) as error:
        list(read_alignment(pairs, file))
    assert str(error.value) == message.format(file)


def test_a_target_token_is_aligned_with_the_tokens_of_its_linked_source_words():
    source, target = "机器学习很有趣", "machine learning is"
    words = word_spans(source), word_spans(target)
    tokens = (
        [(0, 2), (2, 3), (3, 5), (5, 7)],
        [(0, 2), (2, 7), (7, 16), (16, 19)],
    )  # 机器 学 习很 有趣; ma chine learning is
    links = parse_links("0-0 1-0 2-1 3-1", 7, 3, "")
    assert token_links(links, words, tokens) == [
        [0],
        [0],
        [1, 2],
        [4],
        [4],
    ]  # is and <eos>: the source's <eos>, token 4


def test_overlaps_of_some_spans():
    rows, columns = [(0, 2), (2, 2), (3, 6)], [(0, 1), (1, 4), (5, 9)]
    assert overlaps(rows, columns) == [[0, 1], [], [1, 2]]


SPANS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6).map(
    lambda steps: [
        (sum(map(sum, steps[:i])) + gap, sum(map(sum, steps[:i])) + gap + size)
        for i, (gap, size) in enumerate(steps)
    ]
)


@given(SPANS, SPANS)
def test_overlaps_equal_those_found_by_comparing_all_pairs(rows, columns):
    expected = [
        [i for i, column in enumerate(columns) if set(range(*row)) & set(range(*column))]
        for row in rows
    ]
    assert overlaps(rows, columns) == expected


def test_all_tokens_of_one_character_overlap_it():
    assert overlaps([(0, 1), (1, 2)], [(0, 1), (0, 1), (0, 1), (1, 2), (1, 2)]) == [
        [0, 1, 2],
        [3, 4],
    ]


def test_gold_weights_are_uniform_over_links_and_zero_in_padding():
    rows = [np.array([0, 0, 1, 1, 2, 1, 3, 2]), np.array([1, 0])]
    expected = torch.tensor(
        [[[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]], [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]
    )
    assert torch.equal(gold_weights(rows, 3, 4), expected)
