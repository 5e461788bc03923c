"""`qkv evaluate` of an embedding model: similarity (--pairs) or retrieval (--source --target).

Prints Spearman and Pearson, or recall@k and MRR; and alignment and uniformity.
See docs/embedding.md.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.embed import open_embedder
from qkv.cli.meter import ProgressMeter
from qkv.messages import _

if TYPE_CHECKING:
    import numpy as np

    from qkv.evaluate.similarity import Retrieval
    from qkv.pipeline.embedder import Embedder

POSITIVE_SCORE = 0.8  # pairs in the top fifth of the scale are positives, for the alignment


def evaluate_pairs(folder: Path, pairs: Path, device: str, as_json: bool) -> None:
    """Semantic textual similarity: correlation of cosines with human scores."""
    from qkv.data.scored import read_scored
    from qkv.evaluate.similarity import alignment, cosines, pearson, spearman, uniformity

    first, second, scores = read_scored(pairs)
    a, b, speed = _vectors(open_embedder(folder, device)[0], first, second)
    similarities = cosines(a, b)
    threshold = min(scores) + POSITIVE_SCORE * (max(scores) - min(scores))
    positives = [n for n, score in enumerate(scores) if score >= threshold]
    report = {
        "pairs": len(scores),
        "spearman": spearman(similarities, scores),
        "pearson": pearson(similarities, scores),
        "alignment": alignment(a[positives], b[positives]),
        "alignment_pairs": len(positives),
        "uniformity": uniformity(_distinct(first + second, a, b)),
        "sentences_per_second": speed,
    }
    text = _(
        "Spearman {spearman:.4f}, Pearson {pearson:.4f} ({pairs:,} pairs)\n"
        "alignment {alignment:.4f} ({alignment_pairs:,} pairs in the top fifth of the scores), "
        "uniformity {uniformity:.4f}\n"
        "throughput {sentences_per_second:.0f} sentences/s",
        **report,
    )
    print(json.dumps(report, indent=2) if as_json else text)


def evaluate_retrieval(
    folder: Path, source: Path, target: Path, device: str, as_json: bool
) -> None:
    """Retrieval between two aligned files, in both directions."""
    from qkv.data.corpus import Pairs
    from qkv.evaluate.similarity import alignment, retrieval, uniformity

    first, second = map(list, zip(*Pairs(source, target), strict=True))
    a, b, speed = _vectors(open_embedder(folder, device)[0], first, second)
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
        "uniformity": uniformity(_distinct(first + second, a, b)),
        "sentences_per_second": speed,
    }
    rows = [
        _("recall@k among {n:,} sentences", n=forward.n),
        _row(f"{source.name} -> {target.name}", forward),
        _row(f"{target.name} -> {source.name}", backward),
        _(
            "alignment {alignment:.4f}, uniformity {uniformity:.4f}, "
            "throughput {speed:.0f} sentences/s",
            speed=speed,
            **report,
        ),
    ]
    print(json.dumps(report, indent=2) if as_json else "\n".join(rows))


def _vectors(
    embedder: "Embedder", first: list[str], second: list[str]
) -> tuple["np.ndarray", "np.ndarray", float]:
    """The embeddings of both sides, and sentences per second."""
    total = len(first) + len(second)
    meter, start = ProgressMeter(total), time.perf_counter()
    a = embedder.embed(first, progress=lambda done, of: meter(done * len(first) // of))
    b = embedder.embed(
        second, progress=lambda done, of: meter(len(first) + done * len(second) // of)
    )
    return a, b, total / (time.perf_counter() - start)


def _distinct(texts: list[str], a: "np.ndarray", b: "np.ndarray") -> "np.ndarray":
    """The embeddings of the distinct sentences."""
    import numpy as np

    last = {text: n for n, text in enumerate(texts)}
    return np.concatenate([a, b])[list(last.values())]


def _recalls(found: "Retrieval") -> dict[str, Any]:
    return {f"recall_at_{k}": recall for k, recall in found.recall_at.items()} | {"mrr": found.mrr}


def _row(name: str, found: "Retrieval") -> str:
    recalls = "  ".join(f"@{k}: {recall:.1%}" for k, recall in found.recall_at.items())
    return f"  {name}   {recalls}   MRR {found.mrr:.4f}"
