"""A fair race: every contestant in a process of its own, taking turns, medians compared.

In: names and commands of workers. Out: seconds of each round. A worker prepares itself, says "ready", and for each
line it reads runs one round and prints its seconds; while the others run, it is stopped (its threads would spin on).
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


def serve(round_: Callable[[], None]) -> None:
    """The worker's side: warm up twice, then run a round for each line."""
    round_()
    round_()
    print("ready", flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        round_()
        seconds, cpu = time.perf_counter() - start, time.process_time() - used
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "cpu": cpu, "peak_mb": peak}), flush=True)


def fastest(ways: list[Callable[[Any], None]]) -> Callable[[Any], None]:
    """Of several ways to do the same, the one that is quickest on what comes first: a peer runs with its best threads."""
    chosen: list[Callable[[Any], None]] = []

    def run(given: Any) -> None:
        if not chosen:
            chosen.append(min(ways, key=lambda way: min(seconds_of(way, given) for _ in range(3))))
        chosen[0](given)

    return run


def seconds_of(way: Callable[[Any], None], given: Any) -> float:
    start = time.perf_counter()
    way(given)
    return time.perf_counter() - start


def race(contestants: dict[str, list[str]], rounds: int = 7) -> dict[str, dict[str, float]]:
    """The driver's side: median seconds of a round, on the clock and of the processor, and the peak memory, by name."""
    workers = {name: started(name, arguments) for name, arguments in contestants.items()}
    told: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            worker.send_signal(signal.SIGCONT)
            worker.stdin.write("go\n")
            worker.stdin.flush()
            told[name].append(json.loads(worker.stdout.readline()))
            worker.send_signal(signal.SIGSTOP)
    for worker in workers.values():
        worker.send_signal(signal.SIGCONT)
        worker.stdin.close()
        worker.wait(timeout=60)
    return {
        name: {
            **{key: statistics.median(one[key] for one in rows) for key in ("seconds", "cpu")},
            "peak_mb": rows[-1]["peak_mb"],
        }
        for name, rows in told.items()
    }


def started(name: str, arguments: list[str]) -> subprocess.Popen:
    """A worker that has warmed up; one after the other, for two at once on two cores would take minutes."""
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
    """The folder of real corpora, beside the checkout."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        raise SystemExit(f"no corpora in {folder}; this benchmark needs them")
    return folder
