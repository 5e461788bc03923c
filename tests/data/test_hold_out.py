"""Hold-out split: one row of 100, one of 10 for small files; no text is on both sides."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qkv.data.corpus import Pairs
from qkv.data.groups import read_groups
from qkv.data.hold_out import connected_rows, held_out_rows, hold_out_every
from qkv.errors import QkvError

SMALL = st.integers(0, 60).map(str)  # many repeated texts
PAIRS = st.lists(st.tuples(SMALL, SMALL), min_size=10, max_size=250)
GROUPS = st.lists(st.lists(SMALL, min_size=1, max_size=4), min_size=10, max_size=120)


def held_out(rows) -> np.ndarray:
    """The rows held out; rows that are all connected are no example."""
    try:
        return held_out_rows(rows, "a.tsv", "--valid-source")
    except QkvError as error:
        assert "no pairs can be held out" in str(error)
        assume(False)


def texts_of(rows, selected) -> set[str]:
    return {text for row, is_in in zip(rows, selected, strict=True) if is_in for text in row}


@pytest.mark.parametrize(
    "count, held",
    [(10, 1), (20, 2), (199, 20), (200, 2), (1_000, 10), (100_000, 1_000), (250_000, 1_000)],
)
def test_without_repeated_texts_the_middle_row_of_each_block_is_held_out(count, held):
    rows = held_out_rows(((f"a {i}", f"b {i}") for i in range(count)), "a.tsv", "--valid-source")
    every = hold_out_every(count)
    assert np.flatnonzero(rows).tolist() == list(range(every // 2, count, every))
    assert rows.sum() == held and len(rows) == count


@given(st.integers(10, 3_000_000))
def test_at_least_one_line_and_at_most_1_000_or_a_tenth_are_held_out(count):
    every = hold_out_every(count)
    held = (count - 1 - every // 2) // every + 1
    assert 1 <= held <= min(1_000, -(-count // 10))


@given(st.one_of(PAIRS, GROUPS))
def test_no_text_is_on_both_sides(rows):
    selected = held_out(rows)
    assert 1 <= selected.sum() <= max(len(rows) // 2, -(-len(rows) // 10))
    assert not texts_of(rows, selected) & texts_of(rows, ~selected)


@given(PAIRS)
def test_connected_rows_are_the_components_of_the_graph_of_shared_texts(rows):
    """Compared with repeated merging of sets."""
    components: list[set[str]] = []
    for row in rows:
        joined = set(row).union(*(part for part in components if part & set(row)))
        components = [part for part in components if not part & set(row)] + [joined]
    found = connected_rows(rows)
    for number, row in zip(found, rows, strict=True):
        [component] = [part for part in components if set(row) <= part]
        same = [other for other, texts in zip(found, rows, strict=True) if set(texts) <= component]
        assert set(same) == {number}
        assert (found == number).sum() == len(same)


def test_pairs_without_repeated_texts_are_preferred(tmp_path):
    """52 of 200 held-out pairs shared a sentence with the training side."""
    lines = [f"你好 {i}\tthanks\n" if i % 3 else f"书 {i}\tbook {i}\n" for i in range(1_000)]
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    pairs = Pairs(tmp_path / "a.tsv")
    rows = held_out_rows(pairs, "a.tsv", "--valid-source")
    assert rows.sum() == 10 and all(target != "thanks" for _source, target in pairs.subset(rows))


def test_the_groups_of_a_file_share_no_sentence_and_no_hard_negative(tmp_path):
    lines = [f"a {i}\tb {i}\tb {i + 1 if i % 2 else i // 2 + 500}\n" for i in range(300)]
    (tmp_path / "a.tsv").write_text("".join(lines), encoding="utf-8")
    groups = read_groups(str(tmp_path / "a.tsv"), hard_negatives=True)
    rows = [(*group.texts, group.negative) for group in groups]
    selected = held_out(rows)
    train, valid = (list(groups.subset(part)) for part in (~selected, selected))
    assert valid and not {text for group in valid for text in (*group.texts, group.negative)} & {
        text for group in train for text in (*group.texts, group.negative)
    }


def test_pairs_that_all_share_a_text_cannot_be_split():
    with pytest.raises(QkvError) as error:
        held_out_rows([(f"a {i}", "b") for i in range(100)], "a.tsv", "--valid-source")
    assert str(error.value) == (
        "a.tsv: no pairs can be held out: most pairs share a text, directly or through others; "
        "give --valid-source"
    )
