"""A system of benchmarks/generate.py.

python -m benchmarks.generate_worker SYSTEM FOLDER BATCH TOKENS      or: SYSTEM FOLDER memory|loss
"""

import os
import sys
from pathlib import Path

import numpy as np

from benchmarks.harness import fastest, run_worker
from qkv.threads import set_torch_threads

PROMPT, NEW, VOCAB = 64, 128, 32_000
ROUND = {1: 5, NEW: 1}  # calls per round, by new tokens
THREADS = int(os.environ.get("OMP_NUM_THREADS", 2))


def main() -> None:
    system, folder, task = sys.argv[1:4]
    if task in ("memory", "loss"):
        print({"memory": memory, "loss": loss}[task](folder))
        return
    batch, tokens = int(task), int(sys.argv[4])
    prompts = np.random.default_rng(0).integers(3, VOCAB, (batch, PROMPT)).tolist()
    makers = {"qkv": load_qkv, "transformers": load_transformers, "ctranslate2": load_ctranslate2}
    generate = makers[system.split("-")[0]](folder, system.partition("-")[2], tokens)

    def round_() -> None:
        for _ in range(ROUND[tokens]):
            generate(prompts)

    run_worker(round_)


def load_qkv(folder: str, kind: str, tokens: int):
    if kind == "step":
        from qkv.engine import speculative

        speculative.MIN_WEIGHTS = 1 << 62  # off: no model is so large
    return generation(qkv_model(folder), kind, tokens)


def generation(model, kind: str, tokens: int):
    from qkv.engine.stepper import make_stepper
    from qkv.generate.config import GenerationConfig
    from qkv.generate.loop import Bounds, generate

    def run(prompts):
        settings = GenerationConfig(max_new_tokens=tokens, temperature=0, seed=0)
        found = generate(make_stepper(model, kind == "int8"), prompts, settings, Bounds(512))
        assert all(len(sequence.ids) == tokens for sequence in found)

    return run


def qkv_model(folder: str):
    from qkv.allocator import keep_pages

    keep_pages()

    from qkv.checkpoint.huggingface.reader import load_huggingface

    set_torch_threads(THREADS)
    return load_huggingface(f"{folder}/huggingface").model.eval()


def load_transformers(folder: str, kind: str, tokens: int):
    import torch
    from transformers import LlamaForCausalLM

    from benchmarks.peers import generated

    set_torch_threads(THREADS)
    model = LlamaForCausalLM.from_pretrained(f"{folder}/huggingface").eval()
    # A static cache without torch.compile, which would take minutes.
    cache = {"cache_implementation": "static", "disable_compile": True} if kind == "static" else {}

    def run(prompts):
        found = generated(model, torch.tensor(prompts), tokens, **cache)
        assert found.shape[1] == PROMPT + tokens

    return run


def load_ctranslate2(folder: str, kind: str, tokens: int):
    import ctranslate2

    names = ["<unk>", "<s>", "</s>", *map(str, range(3, VOCAB))]

    def with_threads(threads: int):
        generator = ctranslate2.Generator(
            f"{folder}/ctranslate2", intra_threads=threads, compute_type=kind or "float32"
        )

        def run(prompts):
            tokens_of = [[names[i] for i in prompt] for prompt in prompts]
            options = {"max_length": tokens, "min_length": tokens, "sampling_topk": 1}
            found = generator.generate_batch(tokens_of, include_prompt_in_result=False, **options)
            assert all(len(result.sequences_ids[0]) == tokens for result in found)

        return run

    return fastest([with_threads(threads) for threads in {1, THREADS}])


def memory(folder: str) -> str:
    """Resident memory after 1,000 and after 10,000 more tokens, with a sliding context."""
    model, prompt = qkv_model(folder), [list(range(3, 3 + PROMPT))]
    generation(model, "", 1_000)(prompt)
    first = resident_mb()
    generation(model, "", 10_000)(prompt)
    return f"memory {first:.0f} MB after 1,000 tokens, {resident_mb():.0f} MB after 10,000 more"


def resident_mb() -> float:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        * os.sysconf("SC_PAGESIZE")
        / 2**20
    )


def loss(folder: str) -> str:
    """The loss of int8 quantization on random text, in nats per token."""
    model = qkv_model(folder)
    import torch

    from qkv.evaluate.int8_loss import int8_loss

    float32, int8 = int8_loss(
        model, torch.randint(3, VOCAB, (4, 128), generator=torch.Generator().manual_seed(0))
    )
    difference = int8 - float32
    return (
        f"nats per token {float32:.4f}, int8 {int8:.4f}, {difference:+.4f} (random weights, text)"
    )


if __name__ == "__main__":
    main()
