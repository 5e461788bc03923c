"""Number of threads: load measurement, --threads, and one torch thread in decode loops."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from qkv import threads
from qkv.threads import LoadMeter, available_threads, one_torch_thread, thread_limit

PRINT_FREE_CORES = """
import sys, time
from qkv.threads import LoadMeter
meter, end = LoadMeter(), time.monotonic() + 1.0
while time.monotonic() < end: pass
print(meter.free_cores())
"""


class ScriptedMeter(LoadMeter):
    """A meter with given samples of `cores` CPUs, `age` seconds apart, the first `age` seconds old.

    A sample is (idle, own) CPU time, in seconds per second of the clock.
    """

    def __init__(self, cores, *samples, age=0.5):
        start = time.monotonic() - age
        self.samples = iter(
            [(start + n * age, idle * age, own * age) for n, (idle, own) in enumerate(samples)]
        )
        self.cpus, self.free, self.last = range(cores), float(cores), next(self.samples)

    def sample(self):
        return next(self.samples)


@pytest.fixture
def fresh_samples(monkeypatch):
    """Samples of ScriptedMeter are not stale, also on a slow machine."""
    monkeypatch.setattr(threads, "STALE_SECONDS", 60.0)
    monkeypatch.setattr(threads, "_chosen", None)


@pytest.mark.usefixtures("fresh_samples")
@pytest.mark.parametrize(
    "idle, own, free",
    [
        (2.0, 0.0, 2.0),
        (0.0, 2.0, 2.0),
        (1.0, 0.0, 1.0),
        (0.0, 1.0, 1.0),
        (0.0, 0.0, 0.0),
        (0.5, 1.0, 1.5),
    ],
)
def test_free_cores_are_idle_time_plus_own_time(idle, own, free):
    assert ScriptedMeter(2, (7.0, 3.0), (7.0 + idle, 3.0 + own)).free_cores() == pytest.approx(free)


@pytest.mark.usefixtures("fresh_samples")
@pytest.mark.parametrize(
    "limit, free, expected",
    [(2, 2.0, 2), (2, 1.6, 2), (2, 1.3, 1), (2, 0.0, 1), (8, 7.4, 7), (8, 64.0, 8), (1, 0.0, 1)],
)
def test_threads_are_the_free_cores_up_to_the_limit(monkeypatch, limit, free, expected):
    monkeypatch.setattr(threads, "_meter", ScriptedMeter(64, (0.0, 0.0), (free, 0.0)))
    assert available_threads(limit) == expected


@pytest.mark.parametrize(
    "running, free", [("1/80", 2.0), ("2/80", 1.0), ("3/80", 0.0), ("9/80", 0.0), ("0/80", 2.0)]
)
def test_a_stale_sample_is_replaced_by_the_number_of_running_threads(
    monkeypatch, tmp_path, running, free
):
    (tmp_path / "loadavg").write_text(f"1.60 1.90 1.50 {running} 7432\n")
    monkeypatch.setattr(threads, "LOADAVG", tmp_path / "loadavg")
    assert ScriptedMeter(2, (0.0, 0.0), (0.0, 0.0), age=30).free_cores() == free


def test_the_threads_option_overrides_the_load(monkeypatch):
    monkeypatch.setattr(threads, "_meter", ScriptedMeter(2, (0.0, 0.0), (0.0, 0.0)))
    monkeypatch.setattr(threads, "_chosen", 2)
    assert available_threads(2) == 2


def test_without_proc_stat_the_limit_is_used(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "STAT", tmp_path / "missing")
    monkeypatch.setattr(threads, "_meter", None)
    assert available_threads(4) == 4


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity and /proc/stat (Linux)"
)
def test_a_busy_process_on_the_same_cpu_is_measured():
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n"
    spin = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    other = subprocess.Popen([sys.executable, "-c", pin + spin])
    try:
        done = subprocess.run(
            [sys.executable, "-c", pin + PRINT_FREE_CORES],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        other.kill()
        other.wait()
    # The scheduler gives each process half of the core; more load only lowers it.
    assert float(done.stdout) < 0.8


def test_a_decode_loop_uses_one_torch_thread_and_restores_the_number():
    torch.set_num_threads(3)
    try:
        with one_torch_thread():
            with one_torch_thread():
                assert (torch.get_num_threads(), thread_limit()) == (1, 3)
            assert (torch.get_num_threads(), thread_limit()) == (1, 3)
        assert (torch.get_num_threads(), thread_limit()) == (3, 3)
        with pytest.raises(ValueError, match="x"), one_torch_thread():
            raise ValueError("x")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_concurrent_decode_loops_restore_the_number_of_torch_threads():
    torch.set_num_threads(3)

    def loop(barrier):
        with one_torch_thread():
            barrier.wait(60)
            numbers = torch.get_num_threads(), thread_limit()
            barrier.wait(60)
        return numbers

    try:
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(loop, barrier) for _ in range(2)]
            assert [future.result(60) for future in futures] == [(1, 3), (1, 3)]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
