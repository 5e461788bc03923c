"""A worker process of a study: jobs come as JSON lines on stdin, results go to stdout.

The process uses one thread: at these sizes two processes of one thread measure more than one of
two threads. It exits when stdin is closed, also in the middle of a job.
"""

import json
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

from qkv.allocator import keep_pages
from qkv.errors import QkvError

MODULE = "qkv.study.worker"
UNTIMED_STEPS = 2  # they allocate memory and may compile the native library
TIMED_STEPS, TIMED_SECONDS = 8, 1.0  # timing ends with the first of them
PROGRESS_SECONDS = 0.5
Send = Callable[[dict[str, Any]], None]


class TimingDone(Exception):
    """Raised by `on_step` when the steps have been timed."""


class StepTimer:
    """`on_step` of a timing job: the median time of the first steps."""

    def __init__(self) -> None:
        self.times = [time.monotonic()]

    def __call__(self, step: int) -> None:
        self.times.append(time.monotonic())
        timed = self.times[UNTIMED_STEPS:]
        enough = len(timed) > TIMED_STEPS or (timed and timed[-1] - timed[0] > TIMED_SECONDS)
        if enough and len(timed) > 1:
            raise TimingDone

    @property
    def seconds_per_step(self) -> float:
        timed = self.times[UNTIMED_STEPS:]
        durations = sorted(b - a for a, b in pairwise(timed))
        return durations[len(durations) // 2]


def main() -> None:
    """Read jobs until stdin is closed."""
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints goes to the log
    jobs = jobs_from(sys.stdin)
    keep_pages()
    from qkv.threads import set_torch_threads

    set_torch_threads(1)

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message, allow_nan=False), file=messages, flush=True)

    while True:
        answer(jobs.get(), send)


def jobs_from(stream: TextIO) -> "queue.Queue[dict[str, Any]]":
    """A queue of the jobs that a thread reads; the end of the stream ends the process."""
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in stream:
            jobs.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def answer(job: dict[str, Any], send: Send) -> None:
    """Run a job and send its result, or its error."""
    try:
        send(time_steps(job) if job["steps"] is None else measure(job, send))
    except QkvError as error:
        send({"error": [error.where, error.wrong, error.right]})
    except Exception:
        send({"traceback": traceback.format_exc()})


def time_steps(job: dict[str, Any]) -> dict[str, Any]:
    """Train until enough steps are timed."""
    timer = StepTimer()
    try:
        run_job(job | {"steps": 1_000_000}, timer)
    except TimingDone:
        return {"seconds_per_step": timer.seconds_per_step}
    raise AssertionError("the experiment trains without calling on_step")


def measure(job: dict[str, Any], send: Send) -> dict[str, Any]:
    """Measure a condition; steps are reported on the way."""
    start = last = time.monotonic()

    def on_step(step: int) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_SECONDS:
            last = time.monotonic()
            send({"step": step})

    measured = run_job(job, on_step)
    return {"measurement": finite(measured), "seconds": round(time.monotonic() - start, 3)}


def run_job(job: dict[str, Any], on_step: Callable[[int], None]) -> dict[str, Any]:
    from qkv.study.question import Trial, load_question

    experiment = load_question(job["study"]).experiments[job["experiment"]]
    settings = experiment.conditions[job["condition"]].settings
    trial = Trial(settings, job["seed"], job["steps"], Path(job["data"]), on_step)
    return experiment.measure(trial)


def finite(value: Any) -> Any:
    """The value with None for numbers that JSON does not have: NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return value if not isinstance(value, float) or math.isfinite(value) else None


if __name__ == "__main__":
    main()
