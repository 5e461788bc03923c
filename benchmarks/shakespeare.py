"""Tiny Shakespeare by characters, loss on the last tenth: qkv, a GPT-2 loop, n-gram models.

python benchmarks/shakespeare.py [SEEDS] [KEY=VALUE ...]      the GPT-2 loop once, qkv per seed (3).

qkv's time is that of the command `qkv train generate`, imports and validation included; of the
GPT-2 loop only its 2,000 iterations count. The n-gram models use Witten-Bell smoothing.
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

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.harness import shared_data  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS, GOAL_LOSS, EASY_LOSS = 2_000, 1.58, 1.88


def main(seeds: int, settings: list[str]) -> None:
    file = shared_data() / "tiny_shakespeare" / "input.txt"
    text = file.read_bytes().decode()
    train, valid = text[: int(len(text) * 0.9)], text[int(len(text) * 0.9) :]
    for order in (4, 6, 8):
        print(f"n-gram model of order {order}: {ngram_loss(train, valid, order):.4f}", flush=True)
    plain = run(["-m", "benchmarks.shakespeare_plain", str(file), str(ITERATIONS)])[-1]
    plain = json.loads(plain)
    print(
        f"GPT-2 loop: {plain['loss']:.4f} in {plain['seconds']:.1f} s "
        f"({plain['parameters']:,} parameters, {plain['characters']:,} characters)",
        flush=True,
    )
    results = [train_qkv(file, seed, settings) for seed in range(1, seeds + 1)]
    losses, seconds = [row["loss"] for row in results], [row["total"] for row in results]
    print(
        f"qkv, mean of {seeds}: {statistics.mean(losses):.4f} (goal {GOAL_LOSS}) in "
        f"{statistics.mean(seconds):.1f} s, {statistics.mean(seconds) / plain['seconds']:.2f} x "
        "the GPT-2 loop (goal 1)"
    )
    print(f"seconds to {EASY_LOSS}: {seconds_to(EASY_LOSS, file, settings)}")


def train_qkv(file: Path, seed: int, settings: list[str]) -> dict[str, float]:
    """Loss, wall seconds of the command, and its seconds of training."""
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "run", time.perf_counter()
        run(command(file, out, [f"seed={seed}", *settings]))
        total = time.perf_counter() - start
        entries = [
            json.loads(line)
            for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        spec = json.loads((out / "model.json").read_text(encoding="utf-8"))
    loss = next(entry["loss"] for entry in reversed(entries) if entry["kind"] == "valid")
    last = next(entry for entry in reversed(entries) if entry["kind"] == "train")
    print(
        f"qkv, seed {seed}: {loss:.4f} in {total:.1f} s, of which {last['seconds']:.1f} s of "
        f"training on {last['tokens']:,} characters; d_model {spec['d_model']}",
        flush=True,
    )
    return {"loss": loss, "total": total, "training": last["seconds"]}


def seconds_to(loss: float, file: Path, settings: list[str]) -> str:
    """Training seconds of the shortest schedule that reaches the loss."""
    for steps in (100, 130, 160, 190, 220, 260, 300, 350, 400):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            run(command(file, out, [*settings, f"steps={steps}"]))
            entries = [
                json.loads(line)
                for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            ]
        found = next(entry["loss"] for entry in reversed(entries) if entry["kind"] == "valid")
        if found <= loss:
            return f"{entries[-1]['seconds']:.1f} of training ({steps} steps, {found:.4f})"
    return "not reached"


def command(file: Path, out: Path, settings: list[str]) -> list[str]:
    chosen = [part for setting in settings for part in ("--set", setting)]
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


def ngram_loss(train: str, valid: str, order: int) -> float:
    """Nats per character of an n-gram model with Witten-Bell smoothing."""
    tables: list[dict[str, Counter[str]]] = [defaultdict(Counter) for _ in range(order)]
    for position, character in enumerate(train):
        for length in range(min(order, position + 1)):
            tables[length][train[position - length : position]][character] += 1
    alphabet, text = len(set(train)), train[-order:] + valid
    nats = 0.0
    for position in range(order, len(text)):
        p = 1 / (alphabet + 1)
        for length in range(order):
            seen = tables[length].get(text[position - length : position])
            if seen is not None:
                total, kinds = seen.total(), len(seen)
                p = (seen[text[position]] + kinds * p) / (total + kinds)
        nats -= math.log(p)
    return nats / (len(text) - order)


if __name__ == "__main__":
    seeds = [argument for argument in sys.argv[1:] if "=" not in argument]
    overrides = [argument for argument in sys.argv[1:] if "=" in argument]
    main(int(seeds[0]) if seeds else 3, overrides)
