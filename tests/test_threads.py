"""The load of other processes is measured right, and decides how many threads inference uses."""

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

SHOW_FREE = """
import sys, time
from qkv.threads import LoadMeter
meter, end = LoadMeter(), time.monotonic() + 1.0
while time.monotonic() < end: pass
print(meter.free_cores())
"""


class ScriptedMeter(LoadMeter):
    """Samples of a machine with `cores` CPUs: (clock, idle seconds of all CPUs, our own seconds), from now on 1 s apart."""

    def __init__(self, cores, *samples):
        now = time.monotonic() - 10
        self.samples = iter([(now + n, idle, own) for n, (idle, own) in enumerate(samples)])
        self.free, self.last = float(cores), next(self.samples)

    def sample(self):
        return next(self.samples)


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
def test_what_is_neither_idle_nor_ours_belongs_to_others(idle, own, free):
    assert ScriptedMeter(2, (7.0, 3.0), (7.0 + idle, 3.0 + own)).free_cores() == pytest.approx(free)


@pytest.mark.parametrize(
    "limit, free, expected",
    [(2, 2.0, 2), (2, 1.6, 2), (2, 1.3, 1), (2, 0.0, 1), (8, 7.4, 7), (8, 64.0, 8), (1, 0.0, 1)],
)
def test_threads_follow_the_free_cores_within_the_limit(monkeypatch, limit, free, expected):
    monkeypatch.setattr(threads, "_meter", ScriptedMeter(64, (0.0, 0.0), (free, 0.0)))
    assert available_threads(limit) == expected


def test_a_number_chosen_by_the_user_is_kept_on_a_busy_machine(monkeypatch):
    monkeypatch.setattr(threads, "_meter", ScriptedMeter(2, (0.0, 0.0), (0.0, 0.0)))
    monkeypatch.setattr(threads, "_chosen", 2)
    assert available_threads(2) == 2


def test_where_the_system_does_not_tell_its_load_the_limit_holds(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "STAT", tmp_path / "none")
    monkeypatch.setattr(threads, "_meter", None)
    assert available_threads(4) == 4


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="only Linux pins processes to CPUs and has /proc/stat",
)
def test_a_busy_process_on_our_only_cpu_is_seen():
    cpu = min(os.sched_getaffinity(0))
    pin = f"import os; os.sched_setaffinity(0, {{{cpu}}})\n"
    other = subprocess.Popen(
        [
            sys.executable,
            "-c",
            pin + "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass",
        ]
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", pin + SHOW_FREE], capture_output=True, text=True, check=True
        )
    finally:
        other.kill()
        other.wait()
    assert (
        float(done.stdout) < 0.8
    )  # of one core, of which the scheduler gives each half; more load only lowers it


def test_torch_has_one_thread_in_a_decode_loop_and_its_own_number_after_it():
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


def test_decode_loops_of_several_python_threads_leave_torch_its_number():
    torch.set_num_threads(3)

    def loop(meeting):
        with one_torch_thread():
            meeting.wait(60)
            seen = torch.get_num_threads(), thread_limit()
            meeting.wait(60)
        return seen

    try:
        meeting = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            assert [one.result(60) for one in [pool.submit(loop, meeting) for _ in range(2)]] == [
                (1, 3),
                (1, 3),
            ]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
