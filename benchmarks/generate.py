"""Generation: tokens/s of qkv, transformers and CTranslate2 with the same weights.

python benchmarks/generate.py [15m|110m] [--cpu]
A prompt of 64 tokens, 128 new tokens, batches of 1 and 16, float32 and int8; the time to the first
token (prefill); memory over 10,000 tokens. qkv-step is qkv without speculative decoding. --cpu
compares CPU time instead of wall time: use it with OMP_NUM_THREADS=1 on a busy machine.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.generate_worker import NEW, ROUND  # noqa: E402
from benchmarks.harness import measure_alternating  # noqa: E402

ROUNDS, GOAL = 3, 2.0
# d_model, layers, heads, d_ff of a Llama with 32,000 tokens
SIZES = {"15m": (288, 6, 6, 768), "110m": (768, 12, 12, 2_048)}
WORKERS = (
    "qkv",
    "qkv-step",
    "qkv-int8",
    "transformers",
    "transformers-static",
    "ctranslate2",
    "ctranslate2-int8",
)


def main() -> None:
    clock = "cpu" if "--cpu" in sys.argv else "seconds"
    for size in [size for size in SIZES if size in sys.argv] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            write_folders(size, Path(folder))
            for batch in (1, 16):
                for tokens in (1, NEW):
                    report(size, folder, batch, tokens, clock)
            print(f"{size:4} " + output_of("qkv", folder, "memory"), flush=True)
            print(f"{size:4} " + output_of("qkv", folder, "loss"), flush=True)


def write_folders(size: str, folder: Path) -> None:
    """Write the same random weights as a Hugging Face folder and as a CTranslate2 folder."""
    import torch

    from benchmarks.peers import ctranslate2_spec, llama, save_ctranslate2

    torch.manual_seed(0)
    d_model, layers, heads, d_ff = SIZES[size]
    ids = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1}
    options = {"tie_word_embeddings": True, "max_position_embeddings": 512, **ids}
    llama(32_000, layers, d_model, heads, d_ff, **options).save_pretrained(folder / "huggingface")
    exported = ctranslate2_spec(folder / "huggingface")
    exported.register_vocabulary(["<unk>", "<s>", "</s>", *map(str, range(3, 32_000))])
    exported.config.bos_token, exported.config.eos_token, exported.config.unk_token = (
        "<s>",
        "</s>",
        "<unk>",
    )
    save_ctranslate2(exported, folder / "ctranslate2")


def report(size: str, folder: str, batch: int, tokens: int, clock: str) -> None:
    results = measure_alternating(
        {
            system: ["benchmarks.generate_worker", system, folder, str(batch), str(tokens)]
            for system in WORKERS
        },
        ROUNDS,
    )
    seconds = {system: row[clock] / ROUND[tokens] for system, row in results.items()}
    best = {
        system: min(seconds[system], seconds.get(f"{system}-static", seconds[system]))
        for system in ("transformers", "ctranslate2")
    }
    if tokens == 1:
        figures = "   ".join(f"{system} {1e3 * value:7.1f}" for system, value in seconds.items())
        unit = "ms to the first token"
    else:
        figures = "   ".join(
            f"{system} {batch * tokens / value:7.1f}" for system, value in seconds.items()
        )
        unit = f"tokens/s (goal {GOAL} x transformers at batch 1)"
    ratios = "   ".join(
        f"{system} / transformers {best['transformers'] / seconds[system]:.2f}, "
        f"/ ctranslate2{system[3:]} {seconds[f'ctranslate2{system[3:]}'] / seconds[system]:.2f}"
        for system in ("qkv", "qkv-int8")
    )
    print(f"{size:4} batch {batch:2}   {figures}   {unit}   {ratios}", flush=True)


def output_of(system: str, folder: str, task: str) -> str:
    """The output of a worker that runs alone."""
    command = [sys.executable, "-m", "benchmarks.generate_worker", system, folder, task]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=sys.path[0]
    ).stdout.strip()


if __name__ == "__main__":
    main()
