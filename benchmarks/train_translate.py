"""Translation training: non-padding tokens/s of qkv and of plain loops on the same batches.

python benchmarks/train_translate.py      Multi30k en-de, BPE of 10,000 tokens, 4,096 per batch.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.harness import measure_alternating, shared_data  # noqa: E402

ROUNDS, BATCHES = 5, 6
GOALS = {"tiny": 1.8, "small": 1.15}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        tokens = write_batches(file)
        for size, goal in GOALS.items():
            workers = {
                system: ["benchmarks.train_worker", system, size, str(file), "step"]
                for system in ("qkv", "marian", "torch")
            }
            results = measure_alternating(workers, ROUNDS)
            best = min(results[system]["seconds"] for system in ("marian", "torch"))
            print(f"\n{size}: {tokens:,} non-padding tokens per round")
            for system, row in results.items():
                print(
                    f"  {system:7} {tokens / row['seconds']:10,.0f} tokens/s   "
                    f"peak {row['peak_mb']:6,.0f} MB"
                )
            print(
                f"  qkv / best baseline: {best / results['qkv']['seconds']:.2f} (goal {goal})",
                flush=True,
            )


def write_batches(file: Path, count: int = BATCHES) -> int:
    """Write batches of an epoch as the trainer makes them; return their non-padding tokens."""
    from qkv.data.batches import BatchPlan, pair_batch
    from qkv.text.lines import read_lines
    from qkv.text.train_tokenizer import train_tokenizer

    data = shared_data() / "multi30k_tok"
    sides = [list(read_lines(data / f"train.{language}")) for language in ("en", "de")]
    tokenizer = train_tokenizer("bpe", sides[0] + sides[1], 10_000)
    ids = [tokenizer.encode_batch(side) for side in sides]
    lengths = [np.array([len(row) + 1 for row in side]) for side in ids]
    plan = BatchPlan(*lengths, batch_tokens=4_096, seed=1)
    arrays, tokens = {}, 0
    for i, rows in enumerate(plan.epoch(0)[:count]):
        batch = pair_batch(
            [ids[0][r] for r in rows],
            [ids[1][r] for r in rows],
            tokenizer.pad_id,
            tokenizer.bos_id,
            tokenizer.eos_id,
        )
        arrays |= {
            f"source{i}": batch.source.numpy(),
            f"in{i}": batch.target_in.numpy(),
            f"out{i}": batch.target_out.numpy(),
        }
        tokens += int((batch.source != 0).sum() + (batch.target_out != 0).sum())
    np.savez(file, **arrays)
    return tokens


if __name__ == "__main__":
    main()
