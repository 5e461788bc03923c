"""How often a caption finds another caption of the same unseen picture: trained, untrained, and counting words.

In: a folder trained by recipes/captions-embed.yaml and the folder of the captions. Out: three figures, rank 1 among all
held-out pictures, caption 1 -> 2 and 2 -> 1: this model, the mean of its embeddings before training, and TF-IDF.
"""

import math
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch

sys.path = [
    path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent
]  # tokenizers.py is there

import qkv  # noqa: E402
from qkv.evaluate.similarity import retrieval  # noqa: E402
from qkv.model.transformer import Transformer  # noqa: E402
from qkv.text.lines import read_lines  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]


def trained(model: qkv.Embedder, texts: list[str]) -> np.ndarray:
    return model(texts)


def untrained(model: qkv.Embedder, texts: list[str]) -> np.ndarray:
    """The mean of the first embeddings of a sentence's tokens: all that a model knows before it has read anything."""
    torch.manual_seed(1)
    table = Transformer(model.model.spec).embed.weight.detach().numpy()
    return np.stack([table[ids].mean(axis=0) for ids in model.tokenizer.encode_batch(texts)])


class Counting:
    """TF-IDF: a word counts as often as it stands there, and more the fewer captions of the training set have it."""

    def __init__(self, texts: list[str]):
        self.total = len(texts)
        self.found = Counter(word for text in texts for word in set(words(text)))
        self.place: dict[str, int] = {}

    def __call__(self, texts: list[str]) -> np.ndarray:
        counts = [Counter(words(text)) for text in texts]
        for word in (word for one in counts for word in one):
            self.place.setdefault(word, len(self.place))
        matrix = np.zeros((len(texts), len(self.place)), np.float32)
        for row, one in zip(matrix, counts, strict=True):
            for word, count in one.items():
                row[self.place[word]] = count * (
                    math.log((1 + self.total) / (1 + self.found[word])) + 1
                )
        return matrix


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def main(run: Path, data: Path) -> None:
    first, second = (list(read_lines(data / f"val.{side}.en")) for side in (1, 2))
    counting = Counting(
        [line for side in range(1, 6) for line in read_lines(data / f"train.{side}.en")]
    )
    model = qkv.load(run)
    ways = {
        "this model": lambda texts: trained(model, texts),
        "mean of its untrained embeddings": lambda texts: untrained(model, texts),
        "TF-IDF": counting,
    }
    print(
        f"rank 1 among {len(first):,} captions of unseen pictures\n{'':34}1 -> 2   2 -> 1     mean"
    )
    for name, way in ways.items():
        both = way([*first, *second])
        a, b = both[: len(first)], both[len(first) :]
        there, back = retrieval(a, b).at[1], retrieval(b, a).at[1]
        print(f"{name:<32}{there:>8.1%} {back:>8.1%} {(there + back) / 2:>8.1%}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("python benchmarks/captions.py RUN [FOLDER OF multi30k_captions]")
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2])
        if len(sys.argv) > 2
        else ROOT.parent / "shared" / "data" / "multi30k_captions",
    )
