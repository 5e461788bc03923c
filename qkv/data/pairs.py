"""A pair corpus on disk: the texts as they were read, the ids as they were encoded.

In: pairs and tokenizers. Out: four stores, written once and reused as long as files and tokenizers stay the same.
Told in docs/data.md, "The store".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from qkv.data.corpus import Pair, Pairs
from qkv.data.hold_out import is_held_out
from qkv.data.store import Store, StoreWriter, TextStore, reusable, write_store


class Encoder(Protocol):
    """What is needed of a tokenizer here."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def encode_batch(self, texts: Sequence[str], dropout: float = 0.0) -> list[list[int]]: ...


@dataclass(frozen=True)
class Share:
    """Every `every`-th pair (held out), or all the others: one file serves for training and validation."""

    pairs: Pairs
    every: int
    held_out: bool

    def __iter__(self) -> Iterator[Pair]:
        return (pair for i, pair in enumerate(self.pairs) if self.has(i))

    def has(self, index: int) -> bool:
        """Whether the pair of this number, counted without dropped ones, is in this share."""
        return is_held_out(index, self.every) == self.held_out


def keep_pairs(folder: str | Path, pairs: Pairs | Share) -> tuple[TextStore, TextStore]:
    """Both sides as text stores, in `folder`/source and /target; read again only when the files have changed."""
    folders = Path(folder) / "source", Path(folder) / "target"
    whole = pairs.pairs if isinstance(pairs, Share) else pairs
    fingerprint = {"files": whole.fingerprint(), "errors": whole.errors or "strict"}
    if isinstance(pairs, Share):
        fingerprint["share"] = f"1/{pairs.every} {'held out' if pairs.held_out else 'left'}"
    stored = [reusable(side, fingerprint) for side in folders]
    if stored[0] is None or stored[1] is None or len(stored[0]) != len(stored[1]):
        with (
            StoreWriter(folders[0], 256, fingerprint) as source,
            StoreWriter(folders[1], 256, fingerprint) as target,
        ):
            for left, right in pairs:
                source.add_text(left)
                target.add_text(right)
            source.dropped = target.dropped = whole.dropped
    return TextStore.open(folders[0]), TextStore.open(folders[1])


def keep_ids(
    folder: str | Path, texts: TextStore, tokenizer: Encoder, dropout: float = 0.0
) -> Store:
    """The ids of a text store, without special tokens; encoded again only when text or tokenizer have changed.

    With BPE-dropout a kept encoding is drawn once: a resumed run must read the very ids of the first one.
    """
    fingerprint = texts.rows.fingerprint | {
        "text": texts.rows.checksum,
        "tokenizer": tokenizer.fingerprint,
    }
    if dropout:
        fingerprint |= {"dropout": str(dropout)}
    stored = reusable(folder, fingerprint)
    if stored is None:
        stored = write_store(
            folder, _encoded(texts, tokenizer, dropout), tokenizer.vocab_size, fingerprint
        )
    return stored


def _encoded(texts: Iterable[str], tokenizer: Encoder, dropout: float) -> Iterator[list[int]]:
    """Row by row, a few thousand lines encoded at once: the tokenizer is fast in batches."""
    lines = iter(texts)
    while some := list(islice(lines, 4096)):
        yield from tokenizer.encode_batch(some, dropout)
