"""Sentence embeddings with MiniLM: sentences/s of qkv, sentence-transformers and CTranslate2.

python benchmarks/embed.py      batch 1, calls of 64, and one call with batches of 64.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Not this folder, whose tokenizers.py would hide the library.
sys.path[0] = str(Path(__file__).resolve().parents[1])
from benchmarks.embed_worker import SENTENCES, captions, minilm  # noqa: E402
from benchmarks.harness import measure_alternating  # noqa: E402

ROUNDS, GOAL = 7, 1.5
TITLES = {"single": "batch 1", "calls": "batch 64, calls of 64", "file": "batch 64, one call"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_ctranslate2(f"{folder}/ctranslate2")
        print(f"largest difference: {largest_difference(folder):.1e}", flush=True)
        for mode in SENTENCES:
            report(mode, f"{folder}/ctranslate2")


def write_ctranslate2(folder: str) -> None:
    """Convert the weights with CTranslate2's converter."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(minilm())).convert(folder)


def largest_difference(folder: str) -> float:
    """The largest difference between the embeddings of the three systems."""
    import subprocess

    import numpy as np

    texts = captions(20)
    found = []
    for system in ("qkv", "sentence_transformers", "ctranslate2"):
        code = (
            f"import sys, numpy as np; from benchmarks import embed_worker as w; "
            f"embed = w.load_{system}({f'{folder}/ctranslate2'!r}); "
            f"np.save({f'{folder}/{system}.npy'!r}, embed({texts!r}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=sys.path[0])
        found.append(np.load(f"{folder}/{system}.npy"))
    return max(float(np.abs(found[0] - other).max()) for other in found[1:])


def report(mode: str, folder: str) -> None:
    workers = ("qkv", "sentence-transformers", "ctranslate2")
    results = measure_alternating(
        {system: ["benchmarks.embed_worker", system, folder, mode] for system in workers}, ROUNDS
    )
    speed = {system: SENTENCES[mode] / row["seconds"] for system, row in results.items()}
    figures = "   ".join(f"{system} {rate:7.1f}" for system, rate in speed.items())
    print(
        f"{TITLES[mode]:21}   {figures}   sentences/s   qkv / sentence-transformers "
        f"{speed['qkv'] / speed['sentence-transformers']:.2f} (goal {GOAL})   "
        f"qkv / ctranslate2 {speed['qkv'] / speed['ctranslate2']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
