"""recall@1 of captions of the same held-out image: trained embeddings, untrained ones, and TF-IDF.

python benchmarks/captions.py RUN [DATA]      RUN is trained by recipes/captions-embed.yaml.
"""

import math
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

# Without this folder, whose tokenizers.py would hide the library.
HERE = Path(__file__).resolve().parent
sys.path = [path for path in sys.path if Path(path or ".").resolve() != HERE]

import qkv  # noqa: E402
from qkv.evaluate.similarity import retrieval  # noqa: E402
from qkv.model.transformer import Transformer  # noqa: E402
from qkv.text.lines import read_lines  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def trained(model: qkv.Embedder, texts: list[str]) -> np.ndarray:
    return model(texts)


def untrained(model: qkv.Embedder, texts: list[str]) -> np.ndarray:
    """The mean of the randomly initialized token embeddings of a sentence."""
    torch.manual_seed(1)
    table = Transformer(model.model.spec).embed.weight.detach().numpy()
    return np.stack([table[ids].mean(axis=0) for ids in model.tokenizer.encode_batch(texts)])


class TfIdf:
    """TF-IDF vectors; document frequencies are those of the training captions."""

    def __init__(self, texts: list[str]):
        self.total = len(texts)
        self.document_frequency = Counter(word for text in texts for word in set(words(text)))
        self.columns: dict[str, int] = {}

    def __call__(self, texts: list[str]) -> np.ndarray:
        counts = [Counter(words(text)) for text in texts]
        for word in (word for counter in counts for word in counter):
            self.columns.setdefault(word, len(self.columns))
        matrix = np.zeros((len(texts), len(self.columns)), np.float32)
        for row, counter in zip(matrix, counts, strict=True):
            for word, count in counter.items():
                row[self.columns[word]] = count * (
                    math.log((1 + self.total) / (1 + self.document_frequency[word])) + 1
                )
        return matrix


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def main(run: Path, data: Path) -> None:
    first, second = (list(read_lines(data / f"val.{side}.en")) for side in (1, 2))
    tf_idf = TfIdf([line for side in range(1, 6) for line in read_lines(data / f"train.{side}.en")])
    model = qkv.load(run)
    embedders = {
        "this model": lambda texts: trained(model, texts),
        "mean of its untrained embeddings": lambda texts: untrained(model, texts),
        "TF-IDF": tf_idf,
    }
    print(
        f"recall@1 among {len(first):,} captions of held-out images\n"
        f"{'':34}1 -> 2   2 -> 1     mean"
    )
    for name, embed in embedders.items():
        both = embed([*first, *second])
        a, b = both[: len(first)], both[len(first) :]
        forward, backward = retrieval(a, b).recall_at[1], retrieval(b, a).recall_at[1]
        print(f"{name:<32}{forward:>8.1%} {backward:>8.1%} {(forward + backward) / 2:>8.1%}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("python benchmarks/captions.py RUN [FOLDER OF multi30k_captions]")
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2])
        if len(sys.argv) > 2
        else ROOT.parent / "shared" / "data" / "multi30k_captions",
    )
