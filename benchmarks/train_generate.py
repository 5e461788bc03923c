"""Language model training: tokens/s of qkv and of plain loops with transformers' GPT-2 and Llama.

python benchmarks/train_generate.py      full steps with the optimizer; also the fraction of the
                                         machine's GEMM peak; qkv also with torch.compile.
"""

import sys
from pathlib import Path

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.harness import measure_alternating  # noqa: E402
from benchmarks.train_generate_worker import SIZES, VOCAB, feed_forward  # noqa: E402

ROUNDS = 7
GOALS = {"4x128x64": 1.3, "6x384x256": 1.15}
SYSTEMS = {
    "qkv, gpt2": ("qkv", "gpt2"),
    "qkv, llama": ("qkv", "llama"),
    "qkv, default": ("qkv", "default"),
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
            name: ["benchmarks.train_generate_worker", *system, size]
            for name, system in SYSTEMS.items()
        }
        results = measure_alternating(workers, ROUNDS)
        _, _, _, length, rows, steps = SIZES[size]
        rates = {name: rows * length * steps / row["seconds"] for name, row in results.items()}
        print(f"\n{size}: {rows} rows of {length} tokens per step, vocabulary {VOCAB}")
        for name, rate in rates.items():
            fraction = rate * flops_per_token(SYSTEMS[name][1], size) / peak
            print(
                f"  {name:21} {rate:9,.0f} tokens/s   {fraction:5.1%} of the peak   "
                f"{results[name]['peak_mb']:6,.0f} MB"
            )
        best = max(rate for name, rate in rates.items() if name.startswith("transformers"))
        qkv = max(rate for name, rate in rates.items() if name.startswith("qkv"))
        same_shape = ", ".join(
            f"{shape} / {shape} {rates[f'qkv, {shape}'] / rates[f'transformers, {shape}']:.2f}"
            for shape in ("gpt2", "llama")
        )
        print(
            f"  qkv / best baseline: {qkv / best:.2f} (goal {GOALS.get(size, 1)}); {same_shape}",
            flush=True,
        )


def flops_per_token(shape: str, size: str) -> float:
    """6 per weight of a matrix, and 6 * layers * length * d_model for causal attention."""
    layers, d_model, _, length, _, _ = SIZES[size]
    matrices = (3 if shape == "llama" else 2) * d_model * feed_forward(
        shape, d_model
    ) + 4 * d_model * d_model
    return 6 * (layers * matrices + VOCAB * d_model) + 6 * layers * length * d_model


if __name__ == "__main__":
    main(sys.argv[1:] or list(GOALS))
