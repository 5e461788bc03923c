"""Generated tasks: copy, reverse, recall from d tokens back, addition.

A task gives ids, (batch, length), and the positions of the ids that the model has to predict; the
others are random or given.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.model.eval_mode import eval_mode
from qkv.model.transformer import Transformer
from qkv.study.language_model import BATCH, LossOf
from qkv.study.question import Trial
from qkv.train.seeds import derive_seed

N_SYMBOLS = 16  # of copy, reverse and recall
PLUS, EQUALS = 10, 11  # of addition: digits are 0 to 9
SEPARATOR = N_SYMBOLS
TASK_VOCAB_SIZE = N_SYMBOLS + 1
TEST_BATCH, TEST_SEED = 200, 1_000_003


class Examples(NamedTuple):
    """ids (batch, length), and which of them are predicted, (length,)."""

    ids: Tensor
    predicted: Tensor


Task = Callable[[np.random.Generator, int, int], Examples]  # (generator, batch, size)


def copy(generator: np.random.Generator, batch: int, size: int) -> Examples:
    """x_1 ... x_n SEP x_1 ... x_n."""
    return repeated(generator, batch, size, step=1)


def reverse(generator: np.random.Generator, batch: int, size: int) -> Examples:
    """x_1 ... x_n SEP x_n ... x_1."""
    return repeated(generator, batch, size, step=-1)


def repeated(generator: np.random.Generator, batch: int, size: int, step: int) -> Examples:
    symbols = generator.integers(N_SYMBOLS, size=(batch, size))
    separator = np.full((batch, 1), SEPARATOR)
    return examples(np.hstack([symbols, separator, symbols[:, ::step]]), first=size + 1)


def recall(generator: np.random.Generator, batch: int, size: int) -> Examples:
    """Blocks of `size` random symbols that repeat: each symbol is that of `size` tokens back."""
    block = generator.integers(N_SYMBOLS, size=(batch, size))
    return examples(np.hstack([block, block]), first=size)


def addition(generator: np.random.Generator, batch: int, size: int) -> Examples:
    """a + b = c for numbers of `size` digits; the lowest digit of c comes first."""
    a, b = generator.integers(10**size, size=(2, batch))
    columns = [digits(a, size), np.full((batch, 1), PLUS), digits(b, size)]
    columns += [np.full((batch, 1), EQUALS), digits(a + b, size + 1)[:, ::-1]]
    return examples(np.hstack(columns), first=2 * size + 2)


TASKS: dict[str, Task] = {"copy": copy, "reverse": reverse, "recall": recall, "addition": addition}


def digits(numbers: np.ndarray, n_digits: int) -> np.ndarray:
    """(batch, n_digits), the highest digit first."""
    return numbers[:, None] // 10 ** np.arange(n_digits)[::-1] % 10


def examples(ids: np.ndarray, first: int) -> Examples:
    """Examples whose ids from position `first` on are predicted."""
    predicted = torch.arange(ids.shape[1]) >= first
    return Examples(torch.from_numpy(np.ascontiguousarray(ids)), predicted)


def task_loss(model: Transformer, task: Task, size: int, trial: Trial) -> LossOf:
    """The mean loss of the predicted tokens; each step has new examples."""

    def loss_of(step: int) -> Tensor:
        ids, predicted = task(np.random.default_rng(derive_seed(trial.seed, 3, step)), BATCH, size)
        stream, targets = model.decode(ids[:, :-1]), ids[:, 1:]
        known = predicted[1:]
        return model.loss(stream[:, known], targets[:, known]) / targets[:, known].numel()

    return loss_of


def accuracy(model: Transformer, task: Task, size: int) -> float:
    """The fraction of predicted tokens that are the likeliest, given the right ones before."""
    ids, predicted = task(np.random.default_rng(TEST_SEED), TEST_BATCH, size)
    with eval_mode(model):
        stream = model.decode(ids[:, :-1])[:, predicted[1:]]
        best = model.logits(stream).argmax(dim=-1)  # (batch, predicted)
    return (best == ids[:, 1:][:, predicted[1:]]).float().mean().item()
