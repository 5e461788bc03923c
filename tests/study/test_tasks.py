"""Generated tasks: the predicted tokens are what the task says."""

import numpy as np
import pytest

from qkv.study.tasks import EQUALS, PLUS, SEPARATOR, TASKS, accuracy


def rows(name, size=5, batch=50):
    ids, predicted = TASKS[name](np.random.default_rng(0), batch, size)
    return ids.tolist(), predicted.tolist()


@pytest.mark.parametrize(("name", "order"), [("copy", 1), ("reverse", -1)])
def test_copy_and_reverse_repeat_the_symbols(name, order):
    ids, predicted = rows(name)
    for row in ids:
        assert row[5] == SEPARATOR and row[6:] == row[:5][::order]
    assert predicted == [False] * 6 + [True] * 5


def test_recall_is_the_token_of_so_many_back():
    ids, predicted = rows("recall", size=7)
    assert predicted == [False] * 7 + [True] * 7
    assert all(row[t] == row[t - 7] for row in ids for t in range(7, 14))


def test_addition_is_right():
    ids, predicted = rows("addition", size=3)
    for row in ids:
        assert row[3] == PLUS and row[7] == EQUALS
        a, b = (int("".join(map(str, row[start : start + 3]))) for start in (0, 4))
        assert int("".join(map(str, row[8:][::-1]))) == a + b
    assert predicted == [False] * 8 + [True] * 4


def test_an_untrained_model_guesses():
    from qkv.model.presets import from_sizes
    from qkv.model.transformer import Transformer

    model = Transformer(from_sizes("decoder-only", 17, 16, 1, 2, 32, dropout=0.0))
    assert accuracy(model, TASKS["copy"], 8) == pytest.approx(1 / 17, abs=0.04)
