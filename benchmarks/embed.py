"""Sentence vectors: sentences per second with MiniLM's weights, ours over sentence-transformers and beside CTranslate2.

python benchmarks/embed.py      one by one, in calls of 64, and a whole file 64 at a time; each in its own process.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path[0] = str(
    Path(__file__).resolve().parents[1]
)  # not this folder: its tokenizers.py is not the library
from benchmarks.embed_worker import SENTENCES, minilm, some_texts  # noqa: E402
from benchmarks.race import race  # noqa: E402

ROUNDS, GOAL = 7, 1.5
WORDS = {"alone": "batch 1", "calls": "batch 64, calls of 64", "file": "batch 64, one call"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_champions(f"{folder}/ctranslate2")
        print(f"largest difference of a number: {disagreement(folder):.1e}", flush=True)
        for how in SENTENCES:
            report(how, f"{folder}/ctranslate2")


def write_champions(folder: str) -> None:
    """The same weights in CTranslate2's format, by its own converter."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(minilm())).convert(folder)


def disagreement(folder: str) -> float:
    """All three give the same vectors; a race of different answers would mean nothing. Each in its own process."""
    import subprocess

    import numpy as np

    texts = some_texts(20)
    found = []
    for who in ("ours", "theirs", "champions"):
        code = (
            f"import sys, numpy as np; from benchmarks import embed_worker as w; "
            f"np.save({f'{folder}/{who}.npy'!r}, w.{who}({f'{folder}/ctranslate2'!r})({texts!r}))"
        )
        subprocess.run([sys.executable, "-c", code], check=True, cwd=sys.path[0])
        found.append(np.load(f"{folder}/{who}.npy"))
    return max(float(np.abs(found[0] - other).max()) for other in found[1:])


def report(how: str, folder: str) -> None:
    workers = ("qkv", "sentence-transformers", "ctranslate2")
    told = race({who: ["benchmarks.embed_worker", who, folder, how] for who in workers}, ROUNDS)
    speed = {who: SENTENCES[how] / row["seconds"] for who, row in told.items()}
    figures = "   ".join(f"{who} {rate:7.1f}" for who, rate in speed.items())
    print(
        f"{WORDS[how]:21}   {figures}   sentences/s   over sentence-transformers {speed['qkv'] / speed['sentence-transformers']:.2f} "
        f"(goal {GOAL})   over ctranslate2 {speed['qkv'] / speed['ctranslate2']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
