"""The quick search for the best tokens gives what a full stable sort gives."""

import pytest
import torch

from qkv.kernels.topk import best_sums, best_token, log_sum

pytestmark = pytest.mark.usefixtures("backend")


def scores(rows: int, vocab: int, levels: int | None) -> torch.Tensor:
    """Random numbers; with `levels`, so few different ones that there are equals everywhere."""
    made = torch.Generator().manual_seed(rows * vocab)
    if levels is None:
        return torch.randn(rows, vocab, generator=made)
    return torch.randint(levels, (rows, vocab), generator=made).float()


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
def test_the_best_sums_are_the_first_of_a_stable_sort_over_all_rows(sentences, live, vocab, levels):
    x = scores(sentences * live, vocab, levels)
    x[:, 0] = -torch.inf
    shift = torch.arange(sentences * live).view(sentences, live).flip(1) * -1.0
    ranked = (
        (x.view(sentences, live, vocab) + shift[..., None])
        .flatten(1)
        .sort(dim=1, descending=True, stable=True)
    )
    for n in (1, 2, 8):
        row, token, best = best_sums(x, shift, n)
        assert (row * vocab + token).equal(ranked.indices[:, :n]) and best.equal(
            ranked.values[:, :n]
        )


def test_the_best_may_stand_in_the_last_incomplete_block():
    x = torch.zeros(4, 3_001)
    x[:, 3_000] = 1.0
    assert best_token(x).tolist() == [3_000] * 4
    assert best_sums(x, torch.zeros(4, 1), 2)[1].tolist() == [[3_000, 0]] * 4


@pytest.mark.parametrize("size", [1.0, 50.0, 300.0, -300.0])
def test_the_log_of_the_sum_holds_for_numbers_of_any_size(size):
    x = scores(5, 700, None).double() + size
    torch.testing.assert_close(
        log_sum(x.float()), x.float().double().logsumexp(dim=1).float(), rtol=1e-6, atol=1e-6
    )
