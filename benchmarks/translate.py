"""Translation: sentences/s of qkv, transformers and CTranslate2 with the same weights.

python benchmarks/translate.py [tiny|small] [--cpu]
16 output tokens, greedy and beam 4, batches of 1 and 32. --cpu compares CPU time instead of wall
time: use it with OMP_NUM_THREADS=1 on a busy machine.
"""

import sys
import tempfile
from pathlib import Path

# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.harness import measure_alternating  # noqa: E402
from benchmarks.translate_worker import SENTENCES  # noqa: E402

ROUNDS = 5
GOALS = {1: 5.0, 32: 2.0}


def main() -> None:
    for size in [size for size in ("tiny", "small") if size in sys.argv] or ("tiny", "small"):
        with tempfile.TemporaryDirectory() as folder:
            write_folders(size, Path(folder))
            for batch in (1, 32):
                for beam in (1, 4):
                    report(size, folder, beam, batch)


def write_folders(size: str, folder: Path) -> None:
    """Write random weights in Hugging Face and CTranslate2 format; <eos> is suppressed."""
    import torch

    from benchmarks.peers import VOCAB, ctranslate2_spec, marian, save_ctranslate2

    torch.manual_seed(0)
    model = marian(size)
    model.final_logits_bias[:, :4] = -1e9
    model.save_pretrained(folder / "huggingface")
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *map(str, range(4, VOCAB))]
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    exported = ctranslate2_spec(folder / "huggingface")
    exported.register_source_vocabulary(vocabulary)
    exported.register_target_vocabulary(vocabulary)
    exported.config.bos_token, exported.config.eos_token, exported.config.decoder_start_token = (
        "<s>",
        "</s>",
        "<s>",
    )
    save_ctranslate2(exported, folder / "ctranslate2")


def report(size: str, folder: str, beam: int, batch: int) -> None:
    workers = ("qkv", "qkv-int8", "transformers", "ctranslate2")
    results = measure_alternating(
        {
            system: ["benchmarks.translate_worker", system, folder, str(beam), str(batch)]
            for system in workers
        },
        ROUNDS,
    )
    speed = {
        system: SENTENCES[batch] / row["cpu" if "--cpu" in sys.argv else "seconds"]
        for system, row in results.items()
    }
    figures = "   ".join(f"{system} {rate:7.1f}" for system, rate in speed.items())
    ratios = "   ".join(
        f"/ {peer} {speed['qkv'] / speed[peer]:.2f}, int8 {speed['qkv-int8'] / speed[peer]:.2f}"
        for peer in workers[2:]
    )
    print(
        f"{size:5} beam {beam} batch {batch:2}   {figures}   sentences/s   qkv {ratios} "
        f"(goal {GOALS[batch]} x transformers)",
        flush=True,
    )


if __name__ == "__main__":
    main()
