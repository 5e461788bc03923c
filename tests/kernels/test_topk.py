"""argmax and top-k equal a stable sort of all scores; log-sum-exp equals torch's."""

import pytest
import torch

from qkv.kernels.topk import best_token, log_sum_exp, topk_candidates

pytestmark = pytest.mark.usefixtures("backend")


def scores(rows: int, vocab: int, levels: int | None) -> torch.Tensor:
    """Random scores; with `levels` only that many values, so that many are equal."""
    generator = torch.Generator().manual_seed(rows * vocab)
    if levels is None:
        return torch.randn(rows, vocab, generator=generator)
    return torch.randint(levels, (rows, vocab), generator=generator).float()


@pytest.mark.parametrize("levels", [None, 1, 3, 500])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("vocab", [1, 5, 256, 300, 1_000, 3_000, 3_008])
def test_the_best_token_is_the_first_of_a_stable_sort(rows, vocab, levels):
    x = scores(rows, vocab, levels)
    x[:, 0] = -torch.inf
    assert best_token(x).equal(x.sort(dim=1, descending=True, stable=True).indices[:, 0])


@pytest.mark.parametrize("levels", [None, 1, 3, 500])
@pytest.mark.parametrize("sentences, live", [(1, 1), (1, 4), (3, 1), (3, 2)])
@pytest.mark.parametrize("vocab", [1, 5, 300, 3_000, 3_008])
def test_candidates_are_the_first_of_a_stable_sort_over_all_rows(sentences, live, vocab, levels):
    x = scores(sentences * live, vocab, levels)
    x[:, 0] = -torch.inf
    shift = torch.arange(sentences * live).view(sentences, live).flip(1) * -1.0
    ranked = (
        (x.view(sentences, live, vocab) + shift[..., None])
        .flatten(1)
        .sort(dim=1, descending=True, stable=True)
    )
    for n in (1, 2, 8):
        row, token, best = topk_candidates(x, shift, n)
        assert (row * vocab + token).equal(ranked.indices[:, :n])
        assert best.equal(ranked.values[:, :n])


def test_the_best_token_may_be_in_the_last_incomplete_block():
    x = torch.zeros(4, 3_001)
    x[:, 3_000] = 1.0
    assert best_token(x).tolist() == [3_000] * 4
    assert topk_candidates(x, torch.zeros(4, 1), 2)[1].tolist() == [[3_000, 0]] * 4


@pytest.mark.parametrize("size", [1.0, 50.0, 300.0, -300.0])
def test_log_sum_exp_of_scores_of_any_size(size):
    x = scores(5, 700, None).double() + size
    torch.testing.assert_close(
        log_sum_exp(x.float()), x.float().double().logsumexp(dim=1).float(), rtol=1e-6, atol=1e-6
    )
