"""Number of threads: `--threads N`, or what the load of other processes leaves free.

OpenMP threads spin at barriers. With more threads than free cores, each barrier waits for a thread
that is not scheduled, and a step takes 4 to 100 times as long. See
docs/explanation/performance.md, "Threads".
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from qkv.errors import QkvError
from qkv.messages import _

MAX_THREADS = 1_024
SAMPLE_SECONDS = 0.1  # /proc/stat counts in ticks of 10 ms
STALE_SECONDS = 0.2  # an older sample includes idle time of ours and not the current load
STAT, LOADAVG, TASKS = Path("/proc/stat"), Path("/proc/loadavg"), Path("/proc/self/task")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
N_READINGS = 3  # of the running threads: short tasks start and end

_chosen: int | None = None  # by --threads


def choose_threads(text: str) -> None:
    """Set the number of threads of this process to the value of --threads.

    Call it before torch is imported, which reads OMP_NUM_THREADS.
    """
    global _chosen
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise QkvError(
            "--threads",
            _("'{text}' is not a number of threads", text=text),
            _("use 1 to {max_threads}", max_threads=MAX_THREADS),
        )
    _chosen = int(text)
    os.environ["OMP_NUM_THREADS"] = str(_chosen)
    if "torch" in sys.modules:
        set_torch_threads(_chosen)


def chosen_threads() -> int | None:
    """The value of --threads; None: not given."""
    return _chosen


def set_torch_threads(count: int) -> None:
    """Set torch's number of threads; matrix products inside its parallel regions stay on one.

    `torch.set_num_threads` also tells MKL to use this number everywhere. Then every small product
    that a thread of torch's fused attention computes opens a nested parallel region: 170,000 in a
    training step of the `tiny` translator, instead of 500, and the step takes 1.2 to 1.4 times as
    long. With MKL's own defaults it uses OpenMP's number outside of parallel regions, 1 inside.
    """
    import torch

    torch.get_num_threads()  # the first call of a thread sets MKL's number: not after ours
    torch.set_num_threads(count)
    if mkl := _mkl():
        mkl.MKL_Set_Dynamic(1)
        mkl.MKL_Set_Num_Threads_Local(0)  # 0: no number of its own for this thread


@cache
def _mkl() -> ctypes.CDLL | None:
    """The library of torch that contains MKL; None: torch was built without MKL."""
    import torch

    file = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    library = ctypes.CDLL(str(file)) if file.exists() else None
    return library if hasattr(library, "MKL_Set_Dynamic") else None


class LoadMeter:
    """Measures free cores: (idle time of our CPUs + CPU time of this process) / elapsed time."""

    def __init__(self) -> None:
        self.cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self.free = float(len(self.cpus))
        self.last = self.sample()

    def sample(self) -> tuple[float, float, float] | None:
        """(clock, idle seconds of our CPUs, CPU seconds of this process); None: no /proc/stat."""
        try:
            rows = [line.split() for line in STAT.read_text(encoding="ascii").splitlines()]
        except OSError:
            return None
        ours = {f"cpu{cpu}" for cpu in self.cpus}
        idle = sum(int(row[4]) + int(row[5]) for row in rows if row[0] in ours)  # idle, iowait
        return time.monotonic(), idle / TICKS_PER_SECOND, time.process_time()

    def free_cores(self) -> float | None:
        """Cores that other processes leave free, measured over the last SAMPLE_SECONDS."""
        if self.last is None:
            return None
        age = time.monotonic() - self.last[0]
        if age >= SAMPLE_SECONDS and (now := self.sample()) is not None:
            if age >= STALE_SECONDS:
                self.last, self.free = now, self.free_now()
                return self.free
            clock, idle, own = (new - old for new, old in zip(now, self.last, strict=True))
            self.last, self.free = now, (idle + own) / clock
        return self.free

    def free_now(self) -> float:
        """Cores without a running thread of another process, the maximum of N_READINGS."""
        n_cpus = len(self.cpus)
        try:
            others = min(running_threads() - own_running_threads() for _ in range(N_READINGS))
        except (OSError, ValueError, IndexError):
            return float(n_cpus)
        return float(min(n_cpus, max(0, n_cpus - others)))


def running_threads() -> int:
    """Runnable threads of all processes."""
    return int(LOADAVG.read_text(encoding="ascii").split()[3].partition("/")[0])


def own_running_threads() -> int:
    """Running threads of this process: OpenMP threads spin for a while after their work."""
    states = (
        file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        for file in TASKS.glob("*/stat")
    )
    return sum(state == "R" for state in states)


class _TorchThreads:
    """torch's number of threads outside decode loops; `n_loops` counts loops of all threads."""

    def __init__(self) -> None:
        self.lock, self.n_loops, self.n_threads = threading.Lock(), 0, 1
        self.local = threading.local()


_torch = _TorchThreads()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch operations on one thread: those of a decode loop are too small for more.

    Always one, whatever the load, because results depend on it. The native library still uses
    `thread_limit()`.
    """
    import torch

    depth = getattr(_torch.local, "depth", 0)
    if depth == 0:
        with _torch.lock:
            if _torch.n_loops == 0:
                _torch.n_threads = torch.get_num_threads()
            _torch.n_loops += 1
        set_torch_threads(1)
    _torch.local.depth = depth + 1
    try:
        yield
    finally:
        _torch.local.depth = depth
        if depth == 0:
            with _torch.lock:
                _torch.n_loops -= 1
            set_torch_threads(_torch.n_threads)


def thread_limit() -> int:
    """The maximum number of threads of an operation: torch's."""
    import torch

    return _torch.n_threads if getattr(_torch.local, "depth", 0) else torch.get_num_threads()


_meter: LoadMeter | None = None


def available_threads(limit: int) -> int:
    """At most `limit` threads, fewer while other processes run.

    Only for operations whose results do not depend on the number of threads.
    """
    global _meter
    if limit == 1 or _chosen is not None:
        return limit
    if _meter is None:
        _meter = LoadMeter()
    free = _meter.free_cores()
    return limit if free is None else max(1, min(limit, round(free)))


def inference_threads_for(work: int, min_work: int) -> int:
    """Threads where results do not depend on their number: one if there is little work."""
    return available_threads(thread_limit()) if work >= min_work else 1
