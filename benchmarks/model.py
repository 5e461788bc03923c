"""One training pass (forward and backward) of qkv and of other implementations of the same size.

python benchmarks/model.py      seconds and peak memory; the ratio should be at least 1 everywhere.
"""

import sys
import tempfile
from pathlib import Path

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.harness import measure_alternating  # noqa: E402
from benchmarks.train_translate import write_batches  # noqa: E402

ROUNDS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "batches.npz")
        write_batches(Path(file), 4)
        for size in ("tiny", "small"):
            results = measure_alternating(
                {
                    system: ["benchmarks.train_worker", system, size, file, "pass"]
                    for system in ("qkv", "marian", "torch")
                },
                ROUNDS,
            )
            report(f"{size}, sentences", results)
    for shape in ("gpt2", "llama"):
        results = measure_alternating(
            {system: ["benchmarks.lm_worker", system, shape] for system in ("qkv", "transformers")},
            ROUNDS,
        )
        report(f"decoder-only, {shape}-shaped, 6 x 384 x 256", results)


def report(title: str, results: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}")
    for system, row in results.items():
        ratio = row["seconds"] / results["qkv"]["seconds"]
        print(
            f"  {system:13} {row['seconds']:7.2f} s per round   peak {row['peak_mb']:6,.0f} MB   "
            f"qkv is {ratio:.2f} x as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
