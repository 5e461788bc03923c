"""Alternating measurement of several systems, each in its own process; medians are compared.

A worker warms up, prints "ready", and for each line of its input runs one round and prints its
seconds. While another worker runs, it is stopped (SIGSTOP), because its threads would spin.
"""

import json
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_worker(round_: Callable[[], None]) -> None:
    """The worker: warm up twice, then run a round for each input line."""
    round_()
    round_()
    print("ready", flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        round_()
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": peak}), flush=True)


def fastest(candidates: list[Callable[[Any], None]]) -> Callable[[Any], None]:
    """The candidate that is fastest on the first input, to choose the best number of threads."""
    chosen: list[Callable[[Any], None]] = []

    def run(batch: Any) -> None:
        if not chosen:
            times = {f: min(seconds_of(f, batch) for _ in range(3)) for f in candidates}
            chosen.append(min(candidates, key=lambda f: times[f]))
        chosen[0](batch)

    return run


def seconds_of(function: Callable[[Any], None], batch: Any) -> float:
    start = time.perf_counter()
    function(batch)
    return time.perf_counter() - start


def measure_alternating(
    systems: dict[str, list[str]], rounds: int = 7
) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of a round and peak memory of each system.

    Args:
        systems: The worker module and its arguments, by name.
        rounds: Rounds of each system; the systems alternate.
    """
    workers = {name: start_worker(name, arguments) for name, arguments in systems.items()}
    results: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            worker.send_signal(signal.SIGCONT)
            worker.stdin.write("go\n")
            worker.stdin.flush()
            results[name].append(json.loads(worker.stdout.readline()))
            worker.send_signal(signal.SIGSTOP)
    for worker in workers.values():
        worker.send_signal(signal.SIGCONT)
        worker.stdin.close()
        worker.wait(timeout=60)
    return {
        name: {
            **{key: statistics.median(row[key] for row in rows) for key in ("seconds", "cpu")},
            "peak_mb": rows[-1]["peak_mb"],
        }
        for name, rows in results.items()
    }


def start_worker(name: str, arguments: list[str]) -> subprocess.Popen:
    """Start a worker and wait until it has warmed up, then stop it."""
    command, root = [sys.executable, "-m", *arguments], Path(__file__).parents[1]
    worker = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    while (line := worker.stdout.readline()).strip() != "ready":
        if not line:
            raise SystemExit(f"{name} did not start")
    worker.send_signal(signal.SIGSTOP)
    return worker


def shared_data() -> Path:
    """The folder of corpora, beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        raise SystemExit(f"no corpora in {folder}; this benchmark needs them")
    return folder
