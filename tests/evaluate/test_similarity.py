"""Correlations equal scipy's; retrieval, alignment and uniformity equal their definitions."""

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

RNG = np.random.default_rng(0)
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


def test_recall_and_mrr_equal_their_definitions():
    a, b = RNG.normal(size=(60, 8)), RNG.normal(size=(60, 8))
    b[:30] += 2 * a[:30]
    cosine = [[x @ y / math.sqrt((x @ x) * (y @ y)) for y in b] for x in a]
    ranks = [1 + sum(other > row[i] for other in row) for i, row in enumerate(cosine)]
    found = retrieval(a, b)
    assert found.recall_at == pytest.approx(
        {k: sum(rank <= k for rank in ranks) / 60 for k in (1, 5, 10)}
    )
    assert found.mrr == pytest.approx(sum(1 / rank for rank in ranks) / 60) and found.n == 60


def test_tied_candidates_count_in_expectation():
    found = retrieval(np.ones((20, 4)), np.ones((20, 4)))
    assert found.recall_at == pytest.approx({1: 1 / 20, 5: 5 / 20, 10: 10 / 20})
    assert found.mrr == pytest.approx(sum(1 / rank for rank in range(1, 21)) / 20)
    twins = np.eye(4, dtype=np.float32)[[0, 0, 2, 3]]
    assert retrieval(twins, twins).recall_at[1] == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)


def test_metrics_do_not_depend_on_the_block_size(monkeypatch):
    a, b = RNG.normal(size=(50, 4)), RNG.normal(size=(50, 4))
    expected, expected_uniformity = retrieval(a, b), uniformity(a)
    monkeypatch.setattr("qkv.evaluate.similarity.BLOCK_ROWS", 7)
    assert retrieval(a, b) == expected
    assert uniformity(a) == pytest.approx(expected_uniformity)


@pytest.mark.parametrize("rows", [1, 1_024])
def test_the_nearest_are_those_of_a_full_sort(rows, monkeypatch):
    monkeypatch.setattr("qkv.evaluate.similarity.BLOCK_ROWS", rows)
    vectors, queries = RNG.normal(size=(200, 6)), RNG.normal(size=(3, 6))
    vectors[150] = vectors[20]  # equal scores: the earlier one first
    which, scores = nearest(vectors, queries, 9)
    for query, found, scored in zip(queries, which, scores, strict=True):
        order = sorted(range(200), key=lambda row: (-float(vectors[row] @ query), row))
        assert found.tolist() == order[:9] and scored == pytest.approx(
            vectors[order[:9]] @ query, abs=1e-5
        )
    assert nearest(vectors[:2], queries, 9)[0].shape == (3, 2)


def test_alignment_and_uniformity_are_their_formulas():
    a, b = RNG.normal(size=(20, 5)), RNG.normal(size=(20, 5))
    first, second = ([x / math.dist(x, [0] * 5) for x in rows] for rows in (a, b))
    assert alignment(a, b) == pytest.approx(
        sum(math.dist(x, y) ** 2 for x, y in zip(first, second, strict=True)) / 20
    )
    pairs = [math.exp(-2 * math.dist(x, y) ** 2) for x, y in combinations(first, 2)]
    assert uniformity(a) == pytest.approx(math.log(sum(pairs) / len(pairs)))
    assert uniformity(np.ones((9, 4))) == pytest.approx(0.0, abs=1e-12) and math.isnan(
        uniformity(a[:1])
    )
    assert cosines(a, 3 * a) == pytest.approx(np.ones(20)) and alignment(a, 5 * a) == pytest.approx(
        0.0
    )
