"""Training a language model: tokens per second, ours over the best of plain loops with transformers' GPT-2 and Llama.

python benchmarks/train_generate.py      whole steps with the optimiser, ours also compiled; the share of this machine's GEMM peak beside it.
"""

import sys
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.race import race  # noqa: E402
from benchmarks.train_generate_worker import SIZES, VOCAB, feed_forward  # noqa: E402

ROUNDS = 7
GOALS = {"4x128x64": 1.3, "6x384x256": 1.15}
CONTESTANTS = {
    "qkv, gpt2": ("qkv", "gpt2"),
    "qkv, llama": ("qkv", "llama"),
    "qkv, own": ("qkv", "own"),
    "qkv, llama, compiled": ("qkv-compiled", "llama"),
    "transformers, gpt2": ("transformers", "gpt2"),
    "transformers, llama": ("transformers", "llama"),
}


def main(sizes: list[str]) -> None:
    from qkv.plan.rate import measured_gflops

    peak = measured_gflops(2.0) * 1e9
    print(f"GEMM peak: {peak / 1e9:.0f} GFLOP/s (float32)")
    for size in sizes:
        workers = {
            name: ["benchmarks.train_generate_worker", *who, size]
            for name, who in CONTESTANTS.items()
        }
        told = race(workers, ROUNDS)
        _, _, _, length, rows, steps = SIZES[size]
        rates = {name: rows * length * steps / row["seconds"] for name, row in told.items()}
        print(f"\n{size}: {rows} rows of {length} tokens a step, vocabulary {VOCAB}")
        for name, rate in rates.items():
            share = rate * flops_a_token(CONTESTANTS[name][1], size) / peak
            print(
                f"  {name:21} {rate:9,.0f} tokens/s   {share:5.1%} of the peak   {told[name]['peak_mb']:6,.0f} MB"
            )
        best = max(rate for name, rate in rates.items() if name.startswith("transformers"))
        ours = max(rate for name, rate in rates.items() if name.startswith("qkv"))
        alike = ", ".join(
            f"{shape} over {shape} {rates[f'qkv, {shape}'] / rates[f'transformers, {shape}']:.2f}"
            for shape in ("gpt2", "llama")
        )
        print(
            f"  ours over the best of theirs: {ours / best:.2f} (goal {GOALS.get(size, 1)}); {alike}",
            flush=True,
        )


def flops_a_token(shape: str, size: str) -> float:
    """6 for each weight of a matrix, and attention's own 6 * layers * length * d_model (half of it masked)."""
    layers, d_model, _, length, _, _ = SIZES[size]
    matrices = (3 if shape == "llama" else 2) * d_model * feed_forward(
        shape, d_model
    ) + 4 * d_model * d_model
    return 6 * (layers * matrices + VOCAB * d_model) + 6 * layers * length * d_model


if __name__ == "__main__":
    main(sys.argv[1:] or list(GOALS))
