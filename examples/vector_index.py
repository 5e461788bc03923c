"""Train small sentence embeddings and search the lines of a file by meaning.

python examples/vector_index.py [STEPS]
"""

import sys
from pathlib import Path

from qkv.data.builtin import builtin_pairs
from qkv.pipeline.index import Index
from qkv.train import EmbedRecipe, run


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    train, held_out = builtin_pairs()
    groups = [(pair.source, pair.target) for pair in train]  # texts with the same meaning
    recipe = EmbedRecipe(
        model={"preset": "sentence-encoder", "layers": 1, "d_model": 96, "n_heads": 4, "d_ff": 192},
        tokenizer="byte_bpe",
        vocab_size=2_000,
        batch_groups=64,
        steps=steps,
        save_every=steps,
        validate_every=steps,
    )
    embedder = run(recipe, groups, out="runs/index-example")
    sentences = Path("runs/sentences.txt")
    sentences.write_text("".join(f"{pair.target}\n" for pair in held_out), encoding="utf-8")
    index = Index.open(embedder, sentences)
    for query in ("机器学习很有趣", "今天天气真好"):
        for hit in index.search([query], k=3)[0]:
            print(f"{query}   {hit.score:.3f}   line {hit.line}: {hit.text}")


if __name__ == "__main__":
    main()
