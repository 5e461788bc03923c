"""Worker processes: jobs run in parallel, one single-thread process per core."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from qkv.errors import QkvError
from qkv.messages import _
from qkv.study.worker import MODULE

Job = dict[str, Any]
Message = dict[str, Any]
POLL_SECONDS = 0.2  # between two checks of `stopped`
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Stopped(Exception):
    """The study was stopped by a signal."""


class Worker:
    """A process that runs one job at a time; `answers` gets (job, message)."""

    def __init__(
        self, jobs: "queue.SimpleQueue[Job]", answers: "queue.SimpleQueue[Any]", log: IO[str]
    ):
        self.jobs, self.answers = jobs, answers
        # Its own session: Ctrl-C goes to this process only, which then ends the workers.
        self.process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,
        )
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            job = self.jobs.get()
            try:
                for message in self._messages(job):
                    self.answers.put((job, message))
            except (OSError, ValueError):  # the process has ended
                self.answers.put((job, {"exit_code": self.process.wait()}))
                return

    def _messages(self, job: Job) -> Iterator[Message]:
        """The messages of a job; the last one is its result."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        while True:
            message = json.loads(self.process.stdout.readline())  # ValueError at the end of file
            yield message
            if "step" not in message:
                return

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class WorkerPool:
    """Runs jobs in `n_workers` processes, which start with the first jobs.

    Args:
        n_workers: The number of processes.
        log: The file that gets what the processes print.
        stopped: Whether a signal was received.
    """

    def __init__(self, n_workers: int, log: Path, stopped: Callable[[], bool]):
        self.n_workers, self.log, self.stopped = n_workers, log, stopped
        self.workers: list[Worker] = []
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Job, Message]] = queue.SimpleQueue()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.stop()

    def run(
        self, jobs: Iterable[Job], on_wait: Callable[[], None]
    ) -> Iterator[tuple[Job, Message]]:
        """The messages of all jobs, in the order in which they come."""
        jobs = list(jobs)
        self._start(min(self.n_workers, len(jobs)))
        for job in jobs:
            self.jobs.put(job)
        waiting = len(jobs)
        while waiting:
            on_wait()
            if self.stopped():
                raise Stopped
            try:
                job, message = self.answers.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            self._check(job, message)
            waiting -= "step" not in message
            yield job, message

    def _start(self, n_workers: int) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            while len(self.workers) < n_workers:
                self.workers.append(Worker(self.jobs, self.answers, log))

    def _check(self, job: Job, message: Message) -> None:
        """Raise the error of a worker."""
        if "error" in message:
            raise QkvError(*message["error"])
        if "traceback" in message:
            raise RuntimeError(f"{job}\n{message['traceback']}")
        if "exit_code" in message:
            where = f"{job['study']}, {job['condition']}, seed {job['seed']}"
            wrong = _("the worker process ended with code {code}", code=message["exit_code"])
            raise QkvError(where, wrong, _("see {log}", log=self.log))
