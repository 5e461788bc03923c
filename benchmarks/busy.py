"""Throughput of training, translation and generation on an idle machine and beside a busy process.

python benchmarks/busy.py [--before CHECKOUT] [--rounds N] [WORK ...]
Every measurement is a separate process; idle and busy ones alternate. --before also measures the
idle throughput of another checkout of qkv (an earlier commit) in the same run.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
TRAININGS = ("train-translate", "train-generate")
WORKS = (*TRAININGS, "translate-1", "translate-4", "generate-1", "generate-16")
GOAL = 0.55
BUSY_LOOP = """import os, time
parent, end = os.getppid(), time.monotonic() + 600
while time.monotonic() < end and os.getppid() == parent: pass
"""


def main() -> None:
    options = parse_options()
    trees = {"now": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    with TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        for work in TRAININGS:  # the others use these models; an old checkout reads only its own
            if work not in options.works:
                measure(work, folder, list(trees.values())[-1])
        for work in options.works:
            report(work, folder, trees, options.rounds)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.works = options.works or list(WORKS)
    if unknown := set(options.works) - set(WORKS):
        parser.error(f"no such work: {', '.join(sorted(unknown))}")
    return options


def write_corpus(folder: Path) -> None:
    sys.path.insert(0, str(ROOT))
    from qkv.data.builtin import builtin_pairs

    pairs = builtin_pairs()[0]
    (folder / "pairs.tsv").write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8"
    )
    (folder / "text.txt").write_text(
        "".join(f"{pair.source}\n" for pair in pairs), encoding="utf-8"
    )


def report(work: str, folder: str, trees: dict[str, Path], rounds: int) -> None:
    """Measure idle and busy alternately; `before` only idle."""
    rates: dict[str, list[float]] = {name: [] for name in ("idle", "busy", *list(trees)[1:])}
    for _ in range(rounds):
        rates["idle"].append(measure(work, folder, ROOT))
        with busy_process():
            rates["busy"].append(measure(work, folder, ROOT))
        for name in list(trees)[1:]:
            rates[name].append(measure(work, folder, trees[name]))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    figures = "   ".join(f"{name} {value:9.1f}" for name, value in medians.items())
    before = (
        f"   idle / before {medians['idle'] / medians['before']:.2f}" if "before" in medians else ""
    )
    ratio = medians["busy"] / medians["idle"]
    print(f"{work:16} {figures}   busy / idle {ratio:.2f} (goal {GOAL}){before}", flush=True)


def measure(work: str, folder: str, tree: Path) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tree), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.busy_worker", work, folder]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{work} failed:\n{done.stderr}")
    return float(done.stdout.splitlines()[-1])


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
