"""Sentence embedding demo: Chinese-English retrieval, recall@1 and a similarity matrix."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.demo_recipe import MODEL, OPTIMIZER
from qkv.cli.demo_translate import FILES, TRAIN, VALID, write_pairs
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder

__all__ = ["FILES", "OUT", "RECIPE", "show", "write_files"]

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
    **OPTIMIZER,
    "warmup_steps": 30,
    "decay_fraction": 0.7,
    "save_every": 100,
    "validate_every": 100,
}


def write_files(out: Path) -> dict[str, Any]:
    """Write the built-in pairs as TSV files, and the held-out English sentences for search."""
    from qkv.data.builtin import builtin_pairs
    from qkv.text.lines import write_text

    write_pairs(out)
    write_text(out / ENGLISH, "".join(f"{pair.target}\n" for pair in builtin_pairs()[1]))
    return {"pairs": str(out / TRAIN), "valid_pairs": str(out / VALID)}


def show(out: Path) -> tuple[str, str]:
    """Print recall@1 and nearest neighbors, draw a similarity matrix; return the next commands."""
    import qkv
    from qkv.data.builtin import DEMO_SENTENCES, builtin_pairs
    from qkv.evaluate.similarity import retrieval

    embedder = qkv.load(out)
    held_out = builtin_pairs()[1]
    # both (500, d_model)
    chinese, english = (embedder(list(side)) for side in zip(*held_out, strict=True))
    forward = retrieval(chinese, english).recall_at[1]
    backward = retrieval(english, chinese).recall_at[1]
    print(_("\nOn {n_pairs} held-out pairs, by cosine similarity:", n_pairs=len(held_out)))
    print(f"recall@1 zh->en {forward:.1%}, en->zh {backward:.1%}\n")
    for pair in DEMO_SENTENCES:
        similarity = english @ embedder([pair.source])[0]
        nearest = int(similarity.argmax())
        print(f"{pair.source} -> {held_out[nearest].target}  {similarity[nearest]:.2f}")
    figure = draw_similarity(embedder, out / "similarity.png")
    print(
        _(
            "\nSimilarity matrix: {figure}\nLearning curves:   {curves}",
            figure=figure,
            curves=out / "curves.png",
        )
    )
    return (
        f"qkv search {out} {out / ENGLISH} 机器学习很有趣",
        "qkv train embed --source a.zh --target a.en --out runs/mine",
    )


def draw_similarity(embedder: "Embedder", path: Path) -> Path:
    """Draw the cosine similarity of each Chinese example with each English one."""
    from qkv.data.builtin import DEMO_SENTENCES
    from qkv.evaluate.figures import attention_heatmap

    rows, columns = map(list, zip(*DEMO_SENTENCES, strict=True))
    similarity = embedder(rows) @ embedder(columns).T  # (sentences, sentences)
    title = _("cosine similarity (negative values as 0)")
    # keep the end of a long label: two sentences differ in the last word
    labels = [text if len(text) <= 18 else f"{text[:7]}…{text[-10:]}" for text in columns]
    return attention_heatmap(similarity.clip(min=0.0), rows, labels, path, title)
