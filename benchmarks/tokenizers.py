"""Tokenizer speed: training 8,000 byte-level merges and encoding 10 MB, qkv and other libraries.

Text files are arguments; by default the corpora beside the checkout, else the repository's text.
The systems alternate, in another order each round; the table has medians and ratios.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Without this folder, whose tokenizers.py would hide the library.
HERE = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != HERE]

import sentencepiece  # noqa: E402
import tokenizers  # noqa: E402

from qkv.text.lines import read_lines  # noqa: E402
from qkv.text.train_tokenizer import FileTexts, train_tokenizer  # noqa: E402

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
    """10 MB of text, cut at the end of a line."""
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
    systems: dict[str, Callable[[], object]], rounds: int = ROUNDS
) -> dict[str, list[float]]:
    """Seconds of every system in every round; each round starts with another system."""
    names, seconds = list(systems), {name: list[float]() for name in systems}
    for round_ in range(rounds):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            start = time.perf_counter()
            systems[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def table(title: str, seconds: dict[str, list[float]]) -> None:
    """Print medians, and the median ratio to `tokenizers`."""
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

        def train_sentencepiece() -> None:
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

        training = measure(
            {
                "tokenizers": lambda: plain_tokenizer().train([str(path)], plain_trainer()),
                "tokenizers from an iterator": lambda: plain_tokenizer().train_from_iterator(
                    lines, plain_trainer()
                ),
                "qkv": lambda: train_tokenizer("byte_bpe", FileTexts([path]), VOCABULARY),
            }
        )
        training |= measure({"sentencepiece (bpe, one round)": train_sentencepiece}, rounds=1)
        table(f"training {MERGES:,} byte-level merges", training)

        ours, theirs = train_tokenizer("byte_bpe", FileTexts([path]), VOCABULARY), plain_tokenizer()
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
