"""Training a translator: non-padding tokens per second, ours over the best of plain loops with the same batches.

python benchmarks/train_translate.py      Multi30k en-de, 10,000 joint pieces, batches of 4,096 tokens.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.race import race, shared_data  # noqa: E402

ROUNDS, BATCHES = 5, 6
GOALS = {"tiny": 1.8, "small": 1.15}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batches.npz"
        tokens = write_batches(file)
        for size, goal in GOALS.items():
            workers = {
                who: ["benchmarks.train_worker", who, size, str(file), "step"]
                for who in ("qkv", "marian", "torch")
            }
            told = race(workers, ROUNDS)
            best = min(told[who]["seconds"] for who in ("marian", "torch"))
            print(f"\n{size}: {tokens:,} real tokens a round")
            for who, row in told.items():
                print(
                    f"  {who:7} {tokens / row['seconds']:10,.0f} tokens/s   peak {row['peak_mb']:6,.0f} MB"
                )
            print(
                f"  ours over the best of theirs: {best / told['qkv']['seconds']:.2f} (goal {goal})",
                flush=True,
            )


def write_batches(file: Path, count: int = BATCHES) -> int:
    """Some batches of an epoch, of all lengths, as the trainer would make them; gives their real tokens."""
    from qkv.data.batches import BatchPlan, pair_batch
    from qkv.text.learn import learn
    from qkv.text.lines import read_lines

    data = shared_data() / "multi30k_tok"
    sides = [list(read_lines(data / f"train.{language}")) for language in ("en", "de")]
    tokenizer = learn("bpe", sides[0] + sides[1], 10_000)
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
