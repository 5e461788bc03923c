"""Store the texts and token ids of a parallel corpus; reuse them while nothing has changed.

See docs/guides/data.md.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from qkv.data.corpus import Pairs
from qkv.data.store import (
    TEXT_VOCAB_SIZE,
    Store,
    StoreWriter,
    TextStore,
    open_if_current,
    reuse_or_write,
)
from qkv.text.tokenizer import Tokenizer

__all__ = ["store_ids", "store_pairs"]


def store_pairs(folder: str | Path, pairs: Pairs) -> tuple[TextStore, TextStore]:
    """Store both sides in `folder`/source and /target, or open them if the files are unchanged."""
    folders = Path(folder) / "source", Path(folder) / "target"
    fingerprint = pairs.fingerprint()
    stored = [open_if_current(side, fingerprint) for side in folders]
    if None in stored or len(stored[0] or ()) != len(stored[1] or ()):
        source, target = (StoreWriter(side, TEXT_VOCAB_SIZE, fingerprint) for side in folders)
        with source, target:
            for left, right in pairs:
                source.add(left)
                target.add(right)
            source.dropped = target.dropped = pairs.dropped
    return TextStore.open(folders[0]), TextStore.open(folders[1])


def store_ids(
    folder: str | Path, texts: TextStore, tokenizer: Tokenizer, dropout: float = 0.0
) -> Store:
    """Encode a text store without special tokens, or open the existing ids if nothing has changed.

    With BPE-dropout the encoding is sampled once, so that a resumed run reads the same ids.
    """
    lines = texts.rows
    fingerprint = {**lines.fingerprint, "text": lines.checksum, "tokenizer": tokenizer.fingerprint}
    if dropout:
        fingerprint["dropout"] = str(dropout)
    rows = encoded(texts, tokenizer, dropout)
    return reuse_or_write(folder, rows, tokenizer.vocab_size, fingerprint)


def encoded(
    texts: Iterable[str], tokenizer: Tokenizer, dropout: float = 0.0
) -> Iterator[list[int]]:
    """Encode in batches of 4,096 texts, for speed."""
    lines = iter(texts)
    while batch := list(islice(lines, 4096)):
        yield from tokenizer.encode_batch(batch, dropout)
