"""`qkv evaluate` of an embedding model: similarity (--pairs) or retrieval (--source --target).

Prints Spearman and Pearson, or recall@k and MRR; and alignment and uniformity.
See docs/guides/embeddings.md.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from qkv.cli.embed import open_embedder
from qkv.cli.meter import ProgressMeter
from qkv.data.corpus import Pairs
from qkv.data.scored import read_scored
from qkv.evaluate.similarity import (
    Retrieval,
    alignment,
    cosines,
    pearson,
    retrieval,
    spearman,
    uniformity,
)
from qkv.messages import _

Figures = dict[str, Any]
POSITIVE_SCORE = 0.8  # pairs in the top fifth of the scale are positives, for the alignment


def evaluate_pairs(folder: Path, pairs: Path, device: str) -> tuple[Figures, str]:
    """Semantic textual similarity: correlation of cosines with human scores."""
    first, second, scores = read_scored(pairs)
    a, b, rest = _vectors(folder, device, first, second)
    similarities = cosines(a, b)
    threshold = min(scores) + POSITIVE_SCORE * (max(scores) - min(scores))
    positives = [n for n, score in enumerate(scores) if score >= threshold]
    report = {
        "pairs": len(scores),
        "spearman": spearman(similarities, scores),
        "pearson": pearson(similarities, scores),
        "alignment": alignment(a[positives], b[positives]),
        "alignment_pairs": len(positives),
        **rest,
    }
    return report, _(
        "Spearman {spearman:.4f}, Pearson {pearson:.4f} ({pairs:,} pairs)\n"
        "alignment {alignment:.4f} ({alignment_pairs:,} pairs in the top fifth of the scores), "
        "uniformity {uniformity:.4f}\n"
        "throughput {sentences_per_second:.0f} sentences/s",
        **report,
    )


def evaluate_retrieval(
    folder: Path, source: Path, target: Path, device: str
) -> tuple[Figures, str]:
    """Retrieval between two aligned files, in both directions."""
    first, second = map(list, zip(*Pairs(source, target), strict=True))
    a, b, rest = _vectors(folder, device, first, second)
    forward, backward = retrieval(a, b), retrieval(b, a)
    mean = {
        f"recall_at_{k}": (recall + backward.recall_at[k]) / 2
        for k, recall in forward.recall_at.items()
    }
    report = {
        "pairs": forward.n,
        "source_to_target": _recalls(forward),
        "target_to_source": _recalls(backward),
        "mean": mean,
        "alignment": alignment(a, b),
        **rest,
    }
    rows = [
        _("recall@k among {n:,} sentences", n=forward.n),
        _row(f"{source.name} -> {target.name}", forward),
        _row(f"{target.name} -> {source.name}", backward),
        _(
            "alignment {alignment:.4f}, uniformity {uniformity:.4f}, "
            "throughput {speed:.0f} sentences/s",
            speed=report["sentences_per_second"],
            **report,
        ),
    ]
    return report, "\n".join(rows)


def _vectors(
    folder: Path, device: str, first: list[str], second: list[str]
) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """The embeddings of both sides, and the part of the report that does not need the pairs."""
    embedder, total = open_embedder(folder, device)[0], len(first) + len(second)
    meter, start = ProgressMeter(total), time.perf_counter()
    a = embedder.embed(first, progress=lambda done, of: meter(done * len(first) // of))
    b = embedder.embed(
        second, progress=lambda done, of: meter(len(first) + done * len(second) // of)
    )
    speed = total / (time.perf_counter() - start)
    last = {text: n for n, text in enumerate(first + second)}
    distinct = np.concatenate([a, b])[list(last.values())]
    return a, b, {"uniformity": uniformity(distinct), "sentences_per_second": speed}


def _recalls(found: Retrieval) -> Figures:
    return {f"recall_at_{k}": recall for k, recall in found.recall_at.items()} | {"mrr": found.mrr}


def _row(name: str, found: Retrieval) -> str:
    recalls = "  ".join(f"@{k}: {recall:.1%}" for k, recall in found.recall_at.items())
    return f"  {name}   {recalls}   MRR {found.mrr:.4f}"
