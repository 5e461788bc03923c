"""The number of threads: `--threads N`, or what the load of other processes leaves free.

OpenMP threads spin at barriers. With more threads than free cores, each barrier waits for a thread that is not scheduled,
and a step takes 4 to 100 times as long. Explained in docs/performance.md, "Threads".
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _

MAX_THREADS = 1_024
SAMPLE_SECONDS = 0.1  # /proc/stat counts in ticks of 10 ms
STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

_chosen: int | None = None  # by --threads


def choose_threads(text: str) -> None:
    """Take over the value of --threads for this process; call it before torch is imported, which reads OMP_NUM_THREADS."""
    global _chosen
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise QkvError(
            "--threads",
            _("'{text}' is no number of threads", text=text),
            _("use 1 to {max_threads}", max_threads=MAX_THREADS),
        )
    _chosen = int(text)
    os.environ["OMP_NUM_THREADS"] = str(_chosen)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(_chosen)


def chosen_threads() -> int | None:
    """The value of --threads; None: not given."""
    return _chosen


class LoadMeter:
    """CPU time that other processes use, in cores: the capacity of our CPUs minus idle time minus our own time."""

    def __init__(self) -> None:
        self.cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.free = float(len(self.cpus))
        self.last = self.sample()

    def sample(self) -> tuple[float, float, float] | None:
        """(clock, idle seconds of our CPUs, CPU seconds of this process); None where the system does not tell."""
        try:
            lines = STAT.read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        fields = {
            name: values
            for name, *values in (line.split() for line in lines if line.startswith("cpu"))
        }
        idle = sum(
            int(fields[f"cpu{cpu}"][3]) + int(fields[f"cpu{cpu}"][4])
            for cpu in self.cpus
            if f"cpu{cpu}" in fields
        )
        return time.monotonic(), idle / TICKS_PER_SECOND, time.process_time()

    def free_cores(self) -> float | None:
        """Cores that other processes leave to us, as of the last SAMPLE_SECONDS."""
        if self.last is None:
            return None
        if time.monotonic() - self.last[0] >= SAMPLE_SECONDS and (now := self.sample()) is not None:
            clock, idle, own = (new - old for new, old in zip(now, self.last, strict=True))
            self.last, self.free = now, (idle + own) / clock
        return self.free


class _TorchThreads:
    """torch's number of threads while no decode loop has lowered it; each loop counts once, also those of other threads."""

    def __init__(self) -> None:
        self.lock, self.loops, self.number, self.mine = threading.Lock(), 0, 1, threading.local()


_torch = _TorchThreads()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch's operations on one thread: those of a decode loop are too small for two, which would wait for each other.

    Always one, whatever the load, because their digits depend on it. The native library still uses `thread_limit()`.
    """
    import torch

    depth = getattr(_torch.mine, "depth", 0)
    if depth == 0:
        with _torch.lock:
            if _torch.loops == 0:
                _torch.number = torch.get_num_threads()
            _torch.loops += 1
        torch.set_num_threads(1)
    _torch.mine.depth = depth + 1
    try:
        yield
    finally:
        _torch.mine.depth = depth
        if depth == 0:
            with _torch.lock:
                _torch.loops -= 1
            torch.set_num_threads(_torch.number)


def thread_limit() -> int:
    """The largest number of threads that an operation may use: torch's."""
    import torch

    return _torch.number if getattr(_torch.mine, "depth", 0) else torch.get_num_threads()


_meter: LoadMeter | None = None


def available_threads(limit: int) -> int:
    """At most `limit` threads, fewer while other processes are busy: only for work whose digits do not depend on it."""
    global _meter
    if limit == 1 or _chosen is not None:
        return limit
    if _meter is None:
        _meter = LoadMeter()
    free = _meter.free_cores()
    return limit if free is None else max(1, min(limit, round(free)))
