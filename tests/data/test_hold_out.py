"""Hold-out split: one line of 100, at most 1,000; one of 10 for small files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.hold_out import hold_out_every, is_held_out


@pytest.mark.parametrize(
    "count, held",
    [(10, 1), (20, 2), (199, 20), (200, 2), (1_000, 10), (100_000, 1_000), (250_000, 1_000)],
)
def test_number_of_held_out_lines(count, held):
    assert sum(is_held_out(index, hold_out_every(count)) for index in range(count)) == held


@given(st.integers(10, 3_000_000))
def test_at_least_one_line_and_at_most_1_000_or_a_tenth_are_held_out(count):
    every = hold_out_every(count)
    held = (count - 1 - every // 2) // every + 1
    assert 1 <= held <= min(1_000, -(-count // 10))
