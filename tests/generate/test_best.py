"""The quick search for the best tokens gives what a full stable sort gives."""

import pytest
import torch

from qkv.generate.best import best_token, best_tokens


def scores(rows: int, vocab: int, levels: int | None) -> torch.Tensor:
    """Random numbers; with `levels`, so few different ones that there are equals everywhere."""
    made = torch.Generator().manual_seed(rows * vocab)
    if levels is None:
        return torch.randn(rows, vocab, generator=made)
    return torch.randint(levels, (rows, vocab), generator=made).float()


@pytest.mark.parametrize("levels", [None, 1, 3, 500])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("vocab", [1, 5, 256, 300, 1_000, 3_000, 3_008])
def test_the_best_tokens_are_the_first_of_a_stable_sort(rows, vocab, levels):
    x = scores(rows, vocab, levels)
    x[:, 0] = -torch.inf
    ranked = x.sort(dim=1, descending=True, stable=True)
    assert best_token(x).equal(ranked.indices[:, 0])
    for n in (1, 2, 8):
        best, ids = best_tokens(x, n)
        expected = ranked.indices[:, :n].sort(dim=1).values
        assert ids.equal(expected) and best.equal(x.gather(1, expected))


def test_the_best_may_stand_in_the_last_incomplete_block():
    x = torch.zeros(4, 1_001)
    x[:, 1_000] = 1.0
    assert best_token(x).tolist() == [1_000] * 4
    assert best_tokens(x, 2)[1].tolist() == [[0, 1_000]] * 4
