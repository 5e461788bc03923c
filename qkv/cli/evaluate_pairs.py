"""`qkv evaluate` for an embedder: does it agree with people, and does it find what belongs together?

In: pairs with scores, or two aligned files. Out: Spearman and Pearson, or how often the partner is found; and the shape
of the space: alignment and uniformity. Told in docs/embedding.md, "Scores".
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.embed import open_embedder
from qkv.cli.meter import Meter
from qkv.messages import _

if TYPE_CHECKING:
    import numpy as np

    from qkv.evaluate.similarity import Retrieval
    from qkv.pipeline.embedder import Embedder

NEAR = 0.8  # pairs in the top fifth of the scale mean the same: those are the partners of the alignment


def evaluate_pairs(folder: Path, pairs: Path, device: str, as_json: bool) -> None:
    """Two sentences and a score a line: do near vectors get high scores?"""
    from qkv.data.scored import read_scored
    from qkv.evaluate.similarity import alignment, cosines, pearson, spearman, uniformity

    first, second, scores = read_scored(pairs)
    embedder = open_embedder(folder, device)[0]
    (a, b), speed = _vectors(embedder, first, second)
    said = cosines(a, b)
    bar = min(scores) + NEAR * (max(scores) - min(scores))
    near = [n for n, score in enumerate(scores) if score >= bar]
    facts = {
        "pairs": len(scores),
        "spearman": spearman(said, scores),
        "pearson": pearson(said, scores),
        "alignment": alignment(a[near], b[near]),
        "alignment_pairs": len(near),
        "uniformity": uniformity(_distinct(first + second, a, b)),
        "sentences_per_second": speed,
    }
    text = _(
        "Spearman {spearman:.4f}, Pearson {pearson:.4f} ({pairs:,} pairs)\nalignment {alignment:.4f} ({alignment_pairs:,} pairs in the top fifth of the scores), uniformity {uniformity:.4f}\n{sentences_per_second:.0f} sentences/s",
        **facts,
    )
    print(json.dumps(facts, indent=2) if as_json else text)


def evaluate_retrieval(
    folder: Path, source: Path, target: Path, device: str, as_json: bool
) -> None:
    """Two aligned files: which sentence of the other belongs to this one?"""
    from qkv.data.corpus import Pairs
    from qkv.evaluate.similarity import alignment, retrieval, uniformity

    first, second = map(list, zip(*Pairs(source, target), strict=True))
    embedder = open_embedder(folder, device)[0]
    (a, b), speed = _vectors(embedder, first, second)
    there, back = retrieval(a, b), retrieval(b, a)
    mean = {k: (there.at[k] + back.at[k]) / 2 for k in there.at}
    facts = {
        "pairs": there.n,
        "source_to_target": _facts(there),
        "target_to_source": _facts(back),
        "mean": {f"accuracy_at_{k}": share for k, share in mean.items()},
        "alignment": alignment(a, b),
        "uniformity": uniformity(_distinct(first + second, a, b)),
        "sentences_per_second": speed,
    }
    rows = [
        _("the right one of {n:,} is among the first", n=there.n),
        _row(f"{source.name} -> {target.name}", there),
        _row(f"{target.name} -> {source.name}", back),
        _(
            "alignment {alignment:.4f}, uniformity {uniformity:.4f}, {speed:.0f} sentences/s",
            alignment=facts["alignment"],
            uniformity=facts["uniformity"],
            speed=speed,
        ),
    ]
    print(json.dumps(facts, indent=2) if as_json else "\n".join(rows))


def _vectors(
    embedder: "Embedder", first: list[str], second: list[str]
) -> tuple[list["np.ndarray"], float]:
    """Both sides' vectors, and sentences per second."""
    meter, start = Meter(len(first) + len(second)), time.perf_counter()
    a = embedder.embed(first, progress=lambda done, of: meter(done * len(first) // of))
    b = embedder.embed(
        second, progress=lambda done, of: meter(len(first) + done * len(second) // of)
    )
    return [a, b], (len(first) + len(second)) / (time.perf_counter() - start)


def _distinct(texts: list[str], a: "np.ndarray", b: "np.ndarray") -> "np.ndarray":
    """The vectors of all sentences, each sentence once: one with itself is no pair."""
    import numpy as np

    last = {text: n for n, text in enumerate(texts)}
    return np.concatenate([a, b])[list(last.values())]


def _facts(found: "Retrieval") -> dict[str, Any]:
    return {f"accuracy_at_{k}": share for k, share in found.at.items()} | {"mrr": found.mrr}


def _row(name: str, found: "Retrieval") -> str:
    shares = "  ".join(f"{k}: {share:.1%}" for k, share in found.at.items())
    return f"  {name}   {shares}   MRR {found.mrr:.4f}"
