"""Writing: tokens per second, ours over transformers' generate and beside CTranslate2, with the same weights.

python benchmarks/generate.py [15m|110m] [--cpu]     a prompt of 64 tokens, 128 new ones, batches of 1 and 16, float32 and int8;
                                                     the time to the first token; memory over 10,000 tokens. qkv-step does not look ahead.
Each contestant in its own process. --cpu compares the time of the processor instead of the clock's: with OMP_NUM_THREADS=1, on a
machine that others use.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.generate_worker import NEW, ROUND  # noqa: E402
from benchmarks.race import race  # noqa: E402

ROUNDS, GOAL = 3, 2.0
SIZES = {
    "15m": (288, 6, 6, 768),
    "110m": (768, 12, 12, 2_048),
}  # d_model, layers, heads, d_ff: Llama's shape, 32,000 tokens
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
    for size in [one for one in SIZES if one in sys.argv] or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            write_folders(size, Path(folder))
            for batch in (1, 16):
                for tokens in (1, NEW):
                    report(size, folder, batch, tokens, clock)
            print(f"{size:4} " + told_by("qkv", folder, "memory"), flush=True)
            print(f"{size:4} " + told_by("qkv", folder, "loss"), flush=True)


def write_folders(size: str, folder: Path) -> None:
    """The same random weights as a Hugging Face folder and as a CTranslate2 folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from qkv.checkpoint.ctranslate2.spec import their_model
    from qkv.checkpoint.huggingface.reader import load_huggingface

    torch.manual_seed(0)
    d_model, layers, heads, d_ff = SIZES[size]
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32_000,
            hidden_size=d_model,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=d_ff,
            tie_word_embeddings=True,
            max_position_embeddings=512,
            eos_token_id=None,
            pad_token_id=0,
            bos_token_id=1,
        )
    ).save_pretrained(folder / "huggingface")
    loaded = load_huggingface(folder / "huggingface").model
    theirs = their_model(
        loaded.spec,
        {name: weight.float().numpy().copy() for name, weight in loaded.state_dict().items()},
    )
    theirs.register_vocabulary(["<unk>", "<s>", "</s>", *map(str, range(3, 32_000))])
    theirs.config.bos_token, theirs.config.eos_token, theirs.config.unk_token = (
        "<s>",
        "</s>",
        "<unk>",
    )
    theirs.validate()
    theirs.optimize()
    (folder / "ctranslate2").mkdir()
    theirs.save(str(folder / "ctranslate2"))


def report(size: str, folder: str, batch: int, tokens: int, clock: str) -> None:
    told = race(
        {
            who: ["benchmarks.generate_worker", who, folder, str(batch), str(tokens)]
            for who in WORKERS
        },
        ROUNDS,
    )
    seconds = {who: row[clock] / ROUND[tokens] for who, row in told.items()}
    best = {
        who: min(seconds[who], seconds.get(f"{who}-static", seconds[who]))
        for who in ("transformers", "ctranslate2")
    }
    if tokens == 1:
        figures = "   ".join(f"{who} {1e3 * one:7.1f}" for who, one in seconds.items())
        unit = "ms to the first token"
    else:
        figures = "   ".join(f"{who} {batch * tokens / one:7.1f}" for who, one in seconds.items())
        unit = f"tokens/s (goal {GOAL} over transformers at batch 1)"
    ratios = "   ".join(
        f"{who} over transformers {best['transformers'] / seconds[who]:.2f}, over ctranslate2{who[3:]} "
        f"{seconds[f'ctranslate2{who[3:]}'] / seconds[who]:.2f}"
        for who in ("qkv", "qkv-int8")
    )
    print(f"{size:4} batch {batch:2}   {figures}   {unit}   {ratios}", flush=True)


def told_by(who: str, folder: str, task: str) -> str:
    """What a worker says of itself, alone."""
    command = [sys.executable, "-m", "benchmarks.generate_worker", who, folder, task]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=sys.path[0]
    ).stdout.strip()


if __name__ == "__main__":
    main()
