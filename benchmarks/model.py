"""The model alone: one training pass (forward and backward) against others of the same size, in one run.

python benchmarks/model.py      ours over theirs in passes per second; at least 1 everywhere; peak memory beside it.
"""

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.race import race  # noqa: E402
from benchmarks.train_translate import write_batches  # noqa: E402

ROUNDS = 5


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "batches.npz")
        write_batches(Path(file), 4)
        for size in ("tiny", "small"):
            told = race(
                {
                    who: ["benchmarks.train_worker", who, size, file, "pass"]
                    for who in ("qkv", "marian", "torch")
                },
                ROUNDS,
            )
            report(f"{size}, sentences", told)
    for shape in ("gpt2", "llama"):
        told = race(
            {who: ["benchmarks.lm_worker", who, shape] for who in ("qkv", "transformers")}, ROUNDS
        )
        report(f"decoder-only, {shape}-shaped, 6 x 384 x 256", told)


def report(title: str, told: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}")
    for who, row in told.items():
        ratio = row["seconds"] / told["qkv"]["seconds"]
        print(
            f"  {who:13} {row['seconds']:7.2f} s a round   peak {row['peak_mb']:6,.0f} MB   ours is {ratio:.2f} times as fast",
            flush=True,
        )


if __name__ == "__main__":
    main()
