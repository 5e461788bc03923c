"""The demo of sentence embeddings: Chinese and English sentences of one meaning get nearby vectors; recall@1, a similarity matrix."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.cli.demo_translate import FILES, TRAIN, VALID, write_pairs
from qkv.messages import _

if TYPE_CHECKING:
    from qkv.pipeline.embedder import Embedder

__all__ = ["FILES", "RECIPE", "show", "write_files"]

ENGLISH = "english.txt"  # the held-out English sentences, for `qkv search`
RECIPE: dict[str, Any] = {
    "tokenizer": "bytes",
    "vocab_size": 2_000,
    "seed": 1,
    "steps": 300,
    "batch_pairs": 256,
    "pooling": "mean",
    "model": {
        "preset": "sentence-encoder",
        "layers": 2,
        "d_model": 128,
        "n_heads": 4,
        "d_ff": 512,
        "dropout": 0.05,
        "positions": "rotary",
        "activation": "relu2",
        "bias": False,
        "qk_norm": True,
        "max_len": 128,
    },
    "temperature": 0.05,
    "calm_start": True,
    "optimizer": "muon",
    "matrix_lr": 0.02,
    "lr": 4e-3,
    "warmup": 30,
    "decay_share": 0.7,
    "save_every": 100,
    "validate_every": 100,
}


def write_files(out: Path) -> dict[str, Any]:
    """The built-in pairs as two TSV files, and the held-out English sentences to search in."""
    from qkv.data.builtin import builtin_pairs
    from qkv.text.lines import write_text

    write_pairs(out)
    write_text(out / ENGLISH, "".join(f"{pair.target}\n" for pair in builtin_pairs()[1]))
    return {"pairs": str(out / TRAIN), "valid_pairs": str(out / VALID)}


def show(out: Path) -> None:
    """Recall@1 on the held-out pairs, the nearest English sentence of each demo sentence, their similarity matrix."""
    import qkv
    from qkv.data.builtin import NOTES_SENTENCES, builtin_pairs
    from qkv.evaluate.similarity import retrieval

    embedder = qkv.load(out)
    held_out = builtin_pairs()[1]
    chinese, english = (
        embedder([pair.source for pair in held_out]),
        embedder([pair.target for pair in held_out]),
    )  # (500, d_model)
    there, back = retrieval(chinese, english).at[1], retrieval(english, chinese).at[1]
    print(
        _("\nOn {n_held_out} unseen pairs, nearest by cosine similarity:", n_held_out=len(held_out))
    )
    print(f"recall@1 zh->en {there:.1%}, en->zh {back:.1%}\n")
    for pair in NOTES_SENTENCES:
        similarity = english @ embedder([pair.source])[0]
        nearest = int(similarity.argmax())
        print(f"{pair.source} -> {held_out[nearest].target}  {similarity[nearest]:.2f}")
    picture = draw_similarity(embedder, out / "similarity.png")
    print(
        _(
            "\nSimilarity matrix: {picture}\nLearning curves:   {out}",
            picture=picture,
            out=out / "curves.png",
        )
    )
    print(
        _("Next: ") + f"qkv search {out} {out / ENGLISH} 机器学习很有趣   |   "
        "qkv train embed --source a.zh --target a.en --out runs/mine"
    )


def draw_similarity(embedder: "Embedder", path: Path) -> Path:
    """The cosine similarity of each Chinese demo sentence with each English one."""
    from qkv.data.builtin import NOTES_SENTENCES
    from qkv.evaluate.figures import attention_picture

    rows, columns = (
        [pair.source for pair in NOTES_SENTENCES],
        [pair.target for pair in NOTES_SENTENCES],
    )
    similarity = embedder(rows) @ embedder(columns).T  # (sentences, sentences)
    title = _("cosine similarity (negative ones as 0)")
    labels = [
        text if len(text) <= 18 else f"{text[:7]}…{text[-10:]}" for text in columns
    ]  # two of them differ in the last word
    return attention_picture(similarity.clip(min=0.0), rows, labels, path, title)
