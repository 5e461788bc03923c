"""What our tokenizers cost beside the library below them: learning 8,000 byte-level merges, encoding 10 MB.

In: text files as arguments, else the corpora beside the checkout, else this repository's own text. Out: a table of medians
and ratios; every round runs all contestants, one after the other, so that the machine's moods strike all alike.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path = [
    path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent
]  # not this file

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402

from qkv.text.learn import FileTexts, learn  # noqa: E402
from qkv.text.lines import read_lines  # noqa: E402

SIZE, MERGES, ROUNDS = 10_000_000, 8_000, 5
VOCABULARY = 4 + 256 + MERGES
SPECIALS = ["<pad>", "<unk>", "<bos>", "<eos>"]
ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "*.en",
    "*.de",
    "*.fr",
    "*.zh",
    "input.txt",
    "hongloumeng.txt",
    "newstest*.txt",
    "botchan.txt",
)


def corpus() -> bytes:
    """10 MB of text, cut after a whole line."""
    shared = ROOT.parent / "shared" / "data"
    files = [Path(name) for name in sys.argv[1:]] or sorted(
        file for name in NAMES for file in shared.rglob(name)
    )
    files = files or sorted([*ROOT.rglob("*.md"), *(ROOT / "qkv").rglob("*.py")])
    text = b"".join(file.read_bytes().rstrip(b"\n") + b"\n" for file in files)
    text = (text * (1 + SIZE // len(text)))[:SIZE]
    return text[: text.rindex(b"\n") + 1]


def plain_tokenizer() -> tokenizers.Tokenizer:
    plain = tokenizers.Tokenizer(tokenizers.models.BPE())
    plain.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return plain


def plain_trainer() -> tokenizers.trainers.BpeTrainer:
    return tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )


def measure(
    contestants: dict[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Seconds of every contestant in every round; the first in a round changes from round to round."""
    names, seconds = list(contestants), {name: list[float]() for name in contestants}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            start = time.perf_counter()
            contestants[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def table(title: str, seconds: dict[str, list[float]]) -> None:
    """Medians, and each against `tokenizers`: the median of the rounds' ratios."""
    print(f"\n{title}\n{'':32}{'median s':>10}{'MB/s':>8}{'ratio':>8}   rounds")
    for name, times in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(times, seconds["tokenizers"], strict=False))
        middle = statistics.median(times)
        rounds = " ".join(f"{value:.2f}" for value in times)
        print(
            f"{name:32}{middle:10.2f}{SIZE / 1e6 / middle:8.1f}{ratio:8.2f}   {rounds}", flush=True
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.txt"
        path.write_bytes(corpus())
        lines = list(read_lines(path))
        print(
            f"{path.stat().st_size:,} bytes, {len(lines):,} lines; {os.cpu_count()} cores; "
            f"tokenizers {tokenizers.__version__}, sentencepiece {sentencepiece.__version__}"
        )

        def sentencepiece_learn() -> None:
            sentencepiece.SentencePieceTrainer.train(
                input=str(path),
                model_prefix=f"{folder}/sp",
                vocab_size=VOCABULARY,
                model_type="bpe",
                byte_fallback=True,
                character_coverage=0.9995,
                minloglevel=2,
                num_threads=os.cpu_count(),
            )

        learning = measure(
            {
                "tokenizers": lambda: plain_tokenizer().train([str(path)], plain_trainer()),
                "tokenizers from an iterator": lambda: plain_tokenizer().train_from_iterator(
                    lines, plain_trainer()
                ),
                "qkv": lambda: learn("bytes", FileTexts([path]), VOCABULARY),
            }
        )
        learning |= measure({"sentencepiece (bpe, one round)": sentencepiece_learn}, rounds=1)
        table(f"learning {MERGES:,} byte-level merges", learning)

        ours, theirs = learn("bytes", FileTexts([path]), VOCABULARY), plain_tokenizer()
        theirs.train_from_iterator(lines, plain_trainer())
        assert ours.encode_batch(lines[:2000]) == [
            encoding.ids for encoding in theirs.encode_batch_fast(lines[:2000])
        ]
        pieces = sentencepiece.SentencePieceProcessor(f"{folder}/sp.model")
        table(
            "encoding 10 MB, line by line",
            measure(
                {
                    "tokenizers": lambda: [
                        encoding.ids for encoding in theirs.encode_batch_fast(lines)
                    ],
                    "qkv": lambda: ours.encode_batch(lines),
                    "sentencepiece (bpe)": lambda: pieces.encode(lines, num_threads=os.cpu_count()),
                }
            ),
        )


if __name__ == "__main__":
    main()
