"""Correlations are scipy's; places, spread and nearness are their definitions written out."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from qkv.evaluate.similarity import (
    alignment,
    cosines,
    nearest,
    pearson,
    retrieval,
    spearman,
    uniformity,
)

DRAWN = np.random.default_rng(0)
NUMBERS = st.lists(
    st.tuples(st.integers(-5, 5), st.floats(-9, 9).map(lambda x: round(x, 1))),
    min_size=3,
    max_size=40,
)


@given(NUMBERS)
def test_correlations_are_those_of_scipy_with_ties_too(pairs):
    a, b = zip(*pairs, strict=True)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert pearson(a, b) == pytest.approx(scipy_stats.pearsonr(a, b).statistic, abs=1e-9)
        assert spearman(a, b) == pytest.approx(scipy_stats.spearmanr(a, b).statistic, abs=1e-9)
    else:
        assert math.isnan(pearson(a, b)) and math.isnan(spearman(a, b))


def test_partners_are_found_as_counted_one_by_one():
    a, b = DRAWN.normal(size=(60, 8)), DRAWN.normal(size=(60, 8))
    b[:30] += 2 * a[:30]
    cosine = [[x @ y / math.sqrt((x @ x) * (y @ y)) for y in b] for x in a]
    places = [1 + sum(other > row[i] for other in row) for i, row in enumerate(cosine)]
    found = retrieval(a, b)
    assert found.at == pytest.approx(
        {k: sum(place <= k for place in places) / 60 for k in (1, 5, 10)}
    )
    assert found.mrr == pytest.approx(sum(1 / place for place in places) / 60) and found.n == 60


def test_among_equals_chance_decides_so_vectors_that_are_all_one_find_nothing():
    found = retrieval(np.ones((20, 4)), np.ones((20, 4)))
    assert found.at == pytest.approx({1: 1 / 20, 5: 5 / 20, 10: 10 / 20})
    assert found.mrr == pytest.approx(sum(1 / place for place in range(1, 21)) / 20)
    twins = np.eye(4, dtype=np.float32)[[0, 0, 2, 3]]
    assert retrieval(twins, twins).at[1] == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)


def test_figures_do_not_depend_on_how_many_are_compared_at_a_time(monkeypatch):
    a, b = DRAWN.normal(size=(50, 4)), DRAWN.normal(size=(50, 4))
    whole, spread = retrieval(a, b), uniformity(a)
    monkeypatch.setattr("qkv.evaluate.similarity.ROWS", 7)
    assert retrieval(a, b) == whole and uniformity(a) == pytest.approx(spread)


@pytest.mark.parametrize("rows", [1, 1_024])
def test_the_nearest_are_those_of_a_full_sort(rows, monkeypatch):
    monkeypatch.setattr("qkv.evaluate.similarity.ROWS", rows)
    vectors, queries = DRAWN.normal(size=(200, 6)), DRAWN.normal(size=(3, 6))
    vectors[150] = vectors[20]  # equal scores: the earlier one first
    which, scores = nearest(vectors, queries, 9)
    for query, found, said in zip(queries, which, scores, strict=True):
        order = sorted(range(200), key=lambda row: (-float(vectors[row] @ query), row))
        assert found.tolist() == order[:9] and said == pytest.approx(
            vectors[order[:9]] @ query, abs=1e-5
        )
    assert nearest(vectors[:2], queries, 9)[0].shape == (3, 2)


def test_alignment_and_uniformity_are_their_formulas():
    a, b = DRAWN.normal(size=(20, 5)), DRAWN.normal(size=(20, 5))
    one, two = ([x / math.dist(x, [0] * 5) for x in some] for some in (a, b))
    assert alignment(a, b) == pytest.approx(
        sum(math.dist(x, y) ** 2 for x, y in zip(one, two, strict=True)) / 20
    )
    pairs = [math.exp(-2 * math.dist(x, y) ** 2) for x, y in combinations(one, 2)]
    assert uniformity(a) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    assert uniformity(np.ones((9, 4))) == pytest.approx(0.0, abs=1e-12) and math.isnan(
        uniformity(a[:1])
    )
    assert cosines(a, 3 * a) == pytest.approx(np.ones(20)) and alignment(a, 5 * a) == pytest.approx(
        0.0
    )
