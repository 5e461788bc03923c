"""Sentence embedding demo: Chinese-English retrieval, recall@1 and a similarity matrix."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import qkv
from qkv.cli.demo_recipe import MODEL, optimizer
from qkv.cli.demo_translate import FILES, TRAIN, VALID, write_pairs
from qkv.data import builtin
from qkv.messages import N_, _
from qkv.text.lines import write_text

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder

__all__ = ["FIGURES", "FILES", "OUT", "RECIPE", "TRAIN_YOUR_OWN", "show", "write_files"]

OUT = Path("runs/demo-embed")
ENGLISH = "english.txt"  # the held-out English sentences, for `qkv search`
RECIPE: dict[str, Any] = {
    "tokenizer": "byte_bpe",
    "vocab_size": 2_000,
    "seed": 1,
    "steps": 300,
    "batch_groups": 256,
    "pooling": "mean",
    "model": {"preset": "sentence-encoder", "layers": 2, **MODEL, "max_len": 128},
    "temperature": 0.05,
    **optimizer(warmup_steps=30, save_every=100),
}
FIGURES = N_("\nSimilarity matrix: {figure}\nLearning curves:   {curves}")
TRAIN_YOUR_OWN = "qkv train embed --source a.zh --target a.en --out runs/mine"


def write_files(out: Path) -> dict[str, Any]:
    """Write the built-in pairs as TSV files, and the held-out English sentences for search."""
    write_pairs(out)
    write_text(out / ENGLISH, "".join(f"{pair.target}\n" for pair in builtin.builtin_pairs()[1]))
    return {"pairs": str(out / TRAIN), "valid_pairs": str(out / VALID)}


def show(out: Path) -> tuple[Path, str]:
    """Print recall@1 and nearest neighbors, draw similarities; return the figure and a command."""
    from qkv.evaluate.similarity import retrieval

    embedder = qkv.load(out, task="embed")
    held_out = builtin.builtin_pairs()[1]
    # both (500, d_model)
    chinese, english = (embedder(list(side)) for side in zip(*held_out, strict=True))
    forward = retrieval(chinese, english).recall_at[1]
    backward = retrieval(english, chinese).recall_at[1]
    print(_("\nOn {n_pairs} held-out pairs, by cosine similarity:", n_pairs=len(held_out)))
    print(f"recall@1 zh->en {forward:.1%}, en->zh {backward:.1%}\n")
    for pair in builtin.DEMO_SENTENCES:
        similarity = english @ embedder([pair.source])[0]
        nearest = int(similarity.argmax())
        print(f"{pair.source} -> {held_out[nearest].target}  {similarity[nearest]:.2f}")
    figure = draw_similarity(embedder, out / "similarity.png")
    return figure, f"qkv search {out} {out / ENGLISH} 机器学习很有趣"


def draw_similarity(embedder: "Embedder", path: Path) -> Path:
    """Draw the cosine similarity of each Chinese example with each English one."""
    from qkv.evaluate.figures import attention_heatmap

    rows, columns = map(list, zip(*builtin.DEMO_SENTENCES, strict=True))
    similarity = embedder(rows) @ embedder(columns).T  # (sentences, sentences)
    title = _("cosine similarity (negative values as 0)")
    # keep the end of a long label: two sentences differ in the last word
    labels = [text if len(text) <= 18 else f"{text[:7]}…{text[-10:]}" for text in columns]
    return attention_heatmap(similarity.clip(min=0.0), rows, labels, path, title)
