"""Fuzz every reader: python tests/fuzz/run.py --minutes 30 [--only NAME ...] (make fuzz).

Prints the inputs and violations of each reader and exits with 1 if there is a violation; the
violating inputs are in build/fuzz/. Inputs are read from files in memory (/dev/shm).
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent / "web"), str(ROOT)]
# One thread: the readers are forked.
os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "QKV_LANG": "en"}

import atheris  # noqa: E402

with atheris.instrument_imports(include=["qkv"]):
    import fuzz_commands
    import fuzz_readers
    import fuzz_requests

import fuzz_worker  # noqa: E402
from fuzz_readers import Target  # noqa: E402
from mutations import Mutation  # noqa: E402

COMMANDS, REQUESTS = "command lines", "explorer requests"
NAMES = [*fuzz_readers.READERS, COMMANDS, REQUESTS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz")
    options = parser.parse_args()
    seconds = 60 * options.minutes / len(options.only)
    shutil.rmtree(options.out, ignore_errors=True)
    print(f"seed {options.seed}, {seconds:.1f} s for each of {len(options.only)} readers")
    results = {name: fuzz(name, seconds, options.seed, options.out) for name in options.only}
    n_inputs = sum(result.inputs for found in results.values() for result in found)
    n_violations = sum(len(result.violations) for found in results.values() for result in found)
    print(f"{n_inputs:>9,} inputs {n_violations:>4} violations  in all")
    sys.exit(n_violations > 0)


def fuzz(name: str, seconds: float, seed: int, out: Path) -> list[fuzz_worker.Result]:
    """Run the engines of a reader, half of the time each, and print what they found."""
    engines = ["mutations"] if name in (COMMANDS, REQUESTS) else list(fuzz_worker.ENGINES)
    results, start = [], time.monotonic()
    for number, engine in enumerate(engines):
        with targets_of(name) as (targets, mutate):
            job = fuzz_worker.Job(name, targets, mutate, out)
            rest = seconds * (number + 1) / len(engines) - (time.monotonic() - start)
            while rest > 0.2:  # a crash ends the fork: another seed for the rest of the time
                run = fuzz_worker.run(job, fuzz_worker.ENGINES[engine], rest, seed)
                results.append(run)
                seed += 1
                rest = seconds * (number + 1) / len(engines) - (time.monotonic() - start)
                if engine == "atheris":
                    break
    n_inputs, lines = sum(r.inputs for r in results), [v for r in results for v in r.violations]
    print(f"{n_inputs:>9,} inputs {len(lines):>4} violations  {name}", flush=True)
    for line in lines:
        print(f"    {line}", flush=True)
    return results


@contextmanager
def targets_of(name: str) -> Iterator[tuple[list[Target], Mutation]]:
    """The valid files of a reader in a new folder in memory, and how they are mutated."""
    folder = Path(tempfile.mkdtemp(prefix="qkv-fuzz-", dir="/dev/shm"))
    try:
        if name == REQUESTS:
            with fuzz_requests.request_targets(folder / "requests") as targets:
                yield targets, fuzz_requests.mutate_request
        elif name == COMMANDS:
            targets = list(fuzz_commands.command_targets(folder / "commands"))
            yield targets, fuzz_commands.mutate_arguments
        else:
            targets = fuzz_readers.make_targets(name, folder)
            yield targets, fuzz_readers.READERS[name].mutate
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
