"""Tokenizer training on one line without spaces: the time is linear in the length of the line.

    python benchmarks/tokenizer_lines.py [TEXT FILE] [--kind KIND] [--only-letters]

The text without white space is repeated to 1, 2, 4, 5 and 10 MB; a doubled line takes at most 2.3
times as long, and 10 MB at most 60 seconds. Encoding the line is measured as well.
"""

import argparse
import re
import sys
import time
from pathlib import Path

# Without this folder, whose tokenizers.py would hide the library.
HERE = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != HERE]

from qkv.text.train_tokenizer import KINDS, train_tokenizer  # noqa: E402

MEGABYTES = (1, 2, 4, 5, 10)
VOCAB_SIZE, MAX_RATIO, MAX_SECONDS = 10_000, 2.3, 60
SHARED = HERE.parents[1] / "shared" / "data"
DEFAULT = SHARED / "zh_hongloumeng" / "hongloumeng.txt"


def one_line(text: str, size: int) -> str:
    """Repeat a text to `size` bytes of UTF-8, as one line."""
    raw = text.encode()
    return (raw * (1 + size // len(raw)))[:size].decode(errors="ignore")


def measure(kind: str, line: str) -> tuple[float, float]:
    """The seconds of training on one line and of encoding it."""
    start = time.perf_counter()
    tokenizer = train_tokenizer(kind, [line], VOCAB_SIZE)
    trained = time.perf_counter()
    tokenizer.encode(line)
    return trained - start, time.perf_counter() - trained


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", default=DEFAULT)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--only-letters", action="store_true", help="no punctuation either")
    options = parser.parse_args()
    separators = r"[\W\d_]+" if options.only_letters else r"\s+"
    text = re.sub(separators, "", options.file.read_text(encoding="utf-8"))
    failed = False
    for kind in options.kind or KINDS:
        seconds = {size: measure(kind, one_line(text, size * 1_000_000)) for size in MEGABYTES}
        for size, (train, encode) in seconds.items():
            half = seconds.get(size // 2) if size % 2 == 0 else None
            ratio = f"{train / half[0]:5.2f} {encode / half[1]:5.2f}" if half else ""
            print(f"{kind:10}{size:3} MB   train {train:6.2f} s   encode {encode:6.2f} s   {ratio}")
            failed |= train > MAX_SECONDS or (half is not None and train > MAX_RATIO * half[0])
    print("slower than linear" if failed else "linear")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
