"""A measurement of benchmarks/busy.py: python -m benchmarks.busy_worker WORK FOLDER."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 8.0  # of translating or generating
TRAIN = {
    "train-translate": ["translate", "--source", "pairs.tsv", "--set=model=tiny", "--set=steps=60"],
    "train-generate": [
        "generate",
        "--text",
        "text.txt",
        "--set=model.layers=4",
        "--set=model.d_model=128",
        "--set=CONTEXT=64",
        "--set=batch_tokens=1536",
        "--set=steps=150",
        "--set=vocab_size=1000",
    ],
}
QUICK = ["--set=valid_bleu=false", "--set=beam_size=1"]
SKIPPED_FRACTION = 0.3  # of the recorded speeds: the first steps allocate memory


def main() -> None:
    work, folder = sys.argv[1], Path(sys.argv[2])
    print(train(work, folder) if work in TRAIN else use(work, folder))


def train(work: str, folder: Path) -> float:
    """Tokens/s as recorded by the run; the run is kept in FOLDER/WORK."""
    import shutil

    out = folder / work
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "qkv",
        "train",
        *(option.replace("CONTEXT", context_option()) for option in TRAIN[work]),
        *(QUICK if "translate" in work else []),
        "--out",
        str(out),
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    speeds = [step["tokens_per_second"] for step in steps if "tokens_per_second" in step]
    return statistics.median(speeds[int(SKIPPED_FRACTION * len(speeds)) :])


def context_option() -> str:
    """The recipe option of the checkout that is measured: "context" before it was renamed."""
    import qkv

    recipe = Path(qkv.__file__).parent / "train" / "recipe.py"
    return "context_length" if "context_length" in recipe.read_text("utf-8") else "context"


def use(work: str, folder: Path) -> float:
    """Sentences/s of translating held-out sentences, or tokens/s of generation."""
    from qkv.allocator import keep_pages

    keep_pages()
    import qkv
    from qkv.data.builtin import builtin_pairs

    name, beam = work.partition("-")[::2]
    if name == "translate":
        translator = qkv.load(folder / "train-translate")
        sentences = [pair.source for pair in builtin_pairs()[1]][:256]
        return rate(lambda: len(translator(sentences, beam_size=int(beam))))
    generator = qkv.load(folder / "train-generate")
    prompts = [pair.source[:4] for pair in builtin_pairs()[1]][: int(beam)]

    def generate() -> int:
        generator(prompts, max_new_tokens=48, temperature=0.8, seed=1)
        return 48 * len(prompts)

    return rate(generate)


def rate(run) -> float:
    run()
    start, done = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < SECONDS:
        done += run()
    return done / seconds


if __name__ == "__main__":
    main()
