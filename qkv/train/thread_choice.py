"""Choose the number of threads of a training run: time the first micro-batch with several numbers.

The choice is made once, before the first step, and recorded in train.yaml: the number of threads
decides how sums are rounded, so a resumed or repeated run uses the recorded one. See
docs/explanation/performance.md, "Threads".
"""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from qkv.threads import set_torch_threads

if TYPE_CHECKING:
    from qkv.train.loop import Trainer

MIN_GAIN = 1.1  # fewer threads are chosen only if they are this much faster: timings are noisy
MEASURE_SECONDS = 0.6  # for each number of threads
MAX_ROUNDS = 6


def thread_counts(limit: int) -> list[int]:
    """The numbers to compare, the largest first: thread_counts(6) == [6, 3, 1]."""
    return [limit] if limit == 1 else [limit, *thread_counts(limit // 2)]


def fastest(seconds: dict[int, float]) -> int:
    """The number of threads to use: the largest one unless another is clearly faster.

    Args:
        seconds: The time of a pass with each number of threads.

    >>> fastest({2: 1.0, 1: 0.95}), fastest({2: 1.0, 1: 0.7})
    (2, 1)
    """
    best = min(seconds, key=lambda count: seconds[count])
    largest = max(seconds)
    return best if seconds[best] * MIN_GAIN < seconds[largest] else largest


def record_threads(trainer: "Trainer") -> None:
    """Measure the fastest number of threads, unless the recipe has one, and record it there."""
    recipe = trainer.recipe
    if not recipe.threads:
        threads = choose_threads(lambda: trial_pass(trainer), recipe.device)
        trainer.recipe = replace(recipe, threads=threads)


def trial_pass(trainer: "Trainer") -> None:
    """Compute the gradients of the first micro-batch and discard them."""
    buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    batch = trainer.task.batch(0)
    # Compiled code depends on the number of threads.
    with torch.compiler.set_stance("force_eager"):
        trainer.gradients([batch], trainer.task.sizes(batch)[0])
    trainer.model.zero_grad(set_to_none=True)
    trainer.restore_buffers(buffers)


def choose_threads(run_pass: Callable[[], None], device: str) -> int:
    """Use the fastest number of threads from now on, and return it; only a CPU is measured."""
    threads = torch.get_num_threads()
    if threads > 1 and device == "cpu":
        threads = fastest(measure_threads(run_pass, threads))
    set_torch_threads(threads)
    return threads


def measure_threads(run_pass: Callable[[], None], limit: int) -> dict[int, float]:
    """Seconds of a pass with each number of threads, measured alternately."""
    counts, before = thread_counts(limit), torch.get_num_threads()
    run_pass()  # the first pass allocates memory
    rounds: list[list[float]] = []
    try:
        while len(rounds) < MAX_ROUNDS and sum(map(sum, rounds)) < MEASURE_SECONDS * len(counts):
            rounds.append([seconds_of(run_pass, count) for count in counts])
    finally:
        set_torch_threads(before)
    return dict(zip(counts, map(fmean, zip(*rounds, strict=True)), strict=True))


def seconds_of(run_pass: Callable[[], None], threads: int) -> float:
    set_torch_threads(threads)
    start = time.perf_counter()
    run_pass()
    return time.perf_counter() - start
