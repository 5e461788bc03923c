"""Tiny Shakespeare by characters, loss on the whole last tenth: our recipe, the plain GPT-2 loop, and count models.

python benchmarks/shakespeare.py [SEEDS] [KEY=VALUE ...]      the plain loop once, our recipe for each seed (3), one after the other.

Ours is the whole command `qkv train generate`, imports and last validation included; of the plain loop only its 2,000
iterations count. The count models interpolate n-grams (Witten-Bell) up to orders 4, 6 and 8.
"""

import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.race import shared_data  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS, GOAL, EASY = 2_000, 1.58, 1.88


def main(seeds: int, settings: list[str]) -> None:
    file = shared_data() / "tiny_shakespeare" / "input.txt"
    text = file.read_bytes().decode()
    train, valid = text[: int(len(text) * 0.9)], text[int(len(text) * 0.9) :]
    for order in (4, 6, 8):
        print(f"count model of order {order}: {count_model(train, valid, order):.4f}", flush=True)
    plain = run(["-m", "benchmarks.shakespeare_plain", str(file), str(ITERATIONS)])[-1]
    plain = json.loads(plain)
    print(
        f"plain GPT-2 loop: {plain['loss']:.4f} in {plain['seconds']:.1f} s ({plain['parameters']:,} parameters, "
        f"{plain['characters']:,} characters)",
        flush=True,
    )
    told = [ours(file, seed, settings) for seed in range(1, seeds + 1)]
    losses, seconds = [one["loss"] for one in told], [one["whole"] for one in told]
    print(
        f"ours, mean of {seeds}: {statistics.mean(losses):.4f} (goal {GOAL}) in {statistics.mean(seconds):.1f} s, "
        f"{statistics.mean(seconds) / plain['seconds']:.2f} of the plain loop's time (goal 1)"
    )
    print(f"seconds to {EASY}: {seconds_to(EASY, file, settings)}")


def ours(file: Path, seed: int, settings: list[str]) -> dict[str, float]:
    """The whole command, by the clock on the wall; its own seconds of training beside it."""
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "run", time.perf_counter()
        run(command(file, out, [f"seed={seed}", *settings]))
        whole = time.perf_counter() - start
        entries = [
            json.loads(line)
            for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        card = json.loads((out / "model.json").read_text(encoding="utf-8"))
    loss = next(one["loss"] for one in reversed(entries) if one["kind"] == "valid")
    last = next(one for one in reversed(entries) if one["kind"] == "train")
    print(
        f"ours, seed {seed}: {loss:.4f} in {whole:.1f} s, of which {last['seconds']:.1f} s of training on {last['tokens']:,} "
        f"characters; width {card['d_model']}",
        flush=True,
    )
    return {"loss": loss, "whole": whole, "training": last["seconds"]}


def seconds_to(loss: float, file: Path, settings: list[str]) -> str:
    """The shortest of a few runs, each with its own schedule, that reaches the loss."""
    for steps in (100, 130, 160, 190, 220, 260, 300, 350, 400):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            run(command(file, out, [*settings, f"steps={steps}"]))
            entries = [
                json.loads(line)
                for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            ]
        found = next(one["loss"] for one in reversed(entries) if one["kind"] == "valid")
        if found <= loss:
            return f"{entries[-1]['seconds']:.1f} of training ({steps} steps, {found:.4f})"
    return "not reached"


def command(file: Path, out: Path, settings: list[str]) -> list[str]:
    chosen = [part for one in settings for part in ("--set", one)]
    recipe = str(ROOT / "recipes" / "shakespeare-char.yaml")
    return [
        "-m",
        "qkv",
        "train",
        "generate",
        "--recipe",
        recipe,
        "--text",
        str(file),
        "--out",
        str(out),
        *chosen,
    ]


def run(arguments: list[str]) -> list[str]:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.splitlines()


def count_model(train: str, valid: str, order: int) -> float:
    """Nats per character of an n-gram model of this order, interpolated downwards (Witten-Bell), given the whole past."""
    tables: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
    for place, sign in enumerate(train):
        for length in range(min(order, place + 1)):
            tables[length][train[place - length : place]][sign] += 1
    alphabet, whole = len(set(train)), train[-order:] + valid
    nats = 0.0
    for place in range(order, len(whole)):
        p = 1 / (alphabet + 1)
        for length in range(order):
            seen = tables[length].get(whole[place - length : place])
            if seen is not None:
                total, kinds = seen.total(), len(seen)
                p = (seen[whole[place]] + kinds * p) / (total + kinds)
        nats -= math.log(p)
    return nats / (len(whole) - order)


if __name__ == "__main__":
    numbers = [one for one in sys.argv[1:] if "=" not in one]
    main(int(numbers[0]) if numbers else 3, [one for one in sys.argv[1:] if "=" in one])
