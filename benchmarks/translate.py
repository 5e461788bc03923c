"""Translating: sentences per second, ours over transformers' generate and beside CTranslate2, with the same weights.

python benchmarks/translate.py [tiny|small] [--cpu]      16 tokens out, greedy and beam 4, batches of 1 and 32; each in its own process.
--cpu compares the time of the processor instead of the clock's: with OMP_NUM_THREADS=1, on a machine that others use.
"""

import sys
import tempfile
from pathlib import Path

sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.race import race  # noqa: E402
from benchmarks.translate_worker import SENTENCES  # noqa: E402

ROUNDS = 5
GOALS = {1: 5.0, 32: 2.0}


def main() -> None:
    for size in [one for one in ("tiny", "small") if one in sys.argv] or ("tiny", "small"):
        with tempfile.TemporaryDirectory() as folder:
            write_folders(size, Path(folder))
            for batch in (1, 32):
                for beam in (1, 4):
                    report(size, folder, beam, batch)


def write_folders(size: str, folder: Path) -> None:
    """The same random weights as a Hugging Face folder and as a CTranslate2 folder; <eos> is never said."""
    import torch

    from benchmarks.peers import VOCAB, marian
    from qkv.checkpoint.ctranslate2.spec import their_model
    from qkv.checkpoint.huggingface.reader import load_huggingface

    torch.manual_seed(0)
    model = marian(size)
    model.final_logits_bias[:, :4] = -1e9
    model.save_pretrained(folder / "huggingface")
    loaded = load_huggingface(folder / "huggingface").model
    vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *map(str, range(4, VOCAB))]
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    weights = {name: weight.float().numpy().copy() for name, weight in loaded.state_dict().items()}
    theirs = their_model(loaded.spec, weights)
    theirs.register_source_vocabulary(vocabulary)
    theirs.register_target_vocabulary(vocabulary)
    theirs.config.bos_token, theirs.config.eos_token, theirs.config.decoder_start_token = (
        "<s>",
        "</s>",
        "<s>",
    )
    theirs.validate()
    theirs.optimize()
    (folder / "ctranslate2").mkdir()
    theirs.save(str(folder / "ctranslate2"))


def report(size: str, folder: str, beam: int, batch: int) -> None:
    workers = ("qkv", "qkv-int8", "transformers", "ctranslate2")
    told = race(
        {
            who: ["benchmarks.translate_worker", who, folder, str(beam), str(batch)]
            for who in workers
        },
        ROUNDS,
    )
    speed = {
        who: SENTENCES[batch] / row["cpu" if "--cpu" in sys.argv else "seconds"]
        for who, row in told.items()
    }
    figures = "   ".join(f"{who} {rate:7.1f}" for who, rate in speed.items())
    ratios = "   ".join(
        f"over {peer} {speed['qkv'] / speed[peer]:.2f}, int8 {speed['qkv-int8'] / speed[peer]:.2f}"
        for peer in workers[2:]
    )
    print(
        f"{size:5} beam {beam} batch {batch:2}   {figures}   sentences/s   {ratios} (goal {GOALS[batch]} over transformers)",
        flush=True,
    )


if __name__ == "__main__":
    main()
