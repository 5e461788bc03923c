"""Store the texts and token ids of a parallel corpus; reuse them while nothing has changed.

See docs/data.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from qkv.data.corpus import Pair, Pairs
from qkv.data.hold_out import is_held_out
from qkv.data.store import Store, StoreWriter, TextStore, open_if_current, write_store


class Encoder(Protocol):
    """The part of the Tokenizer interface used here."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def encode_batch(self, texts: Sequence[str], dropout: float = 0.0) -> list[list[int]]: ...


@dataclass(frozen=True)
class Subset:
    """One of `every` pairs (held out for validation), or all the others."""

    pairs: Pairs
    every: int
    held_out: bool

    def __iter__(self) -> Iterator[Pair]:
        return (pair for i, pair in enumerate(self.pairs) if self.contains(i))

    def contains(self, index: int) -> bool:
        """Return whether the pair of this index, not counting dropped pairs, is in the subset."""
        return is_held_out(index, self.every) == self.held_out


def store_pairs(folder: str | Path, pairs: Pairs | Subset) -> tuple[TextStore, TextStore]:
    """Store both sides in `folder`/source and /target, or open them if the files are unchanged."""
    folders = Path(folder) / "source", Path(folder) / "target"
    corpus = pairs.pairs if isinstance(pairs, Subset) else pairs
    fingerprint = {"files": corpus.fingerprint(), "errors": corpus.errors or "strict"}
    if isinstance(pairs, Subset):
        fingerprint["share"] = f"1/{pairs.every} {'held out' if pairs.held_out else 'left'}"
    stored = [open_if_current(side, fingerprint) for side in folders]
    if stored[0] is None or stored[1] is None or len(stored[0]) != len(stored[1]):
        with (
            StoreWriter(folders[0], 256, fingerprint) as source,
            StoreWriter(folders[1], 256, fingerprint) as target,
        ):
            for left, right in pairs:
                source.add_text(left)
                target.add_text(right)
            source.dropped = target.dropped = corpus.dropped
    return TextStore.open(folders[0]), TextStore.open(folders[1])


def store_ids(
    folder: str | Path, texts: TextStore, tokenizer: Encoder, dropout: float = 0.0
) -> Store:
    """Encode a text store without special tokens, or open the existing ids if nothing has changed.

    With BPE-dropout the encoding is sampled once, so that a resumed run reads the same ids.
    """
    fingerprint = texts.rows.fingerprint | {
        "text": texts.rows.checksum,
        "tokenizer": tokenizer.fingerprint,
    }
    if dropout:
        fingerprint |= {"dropout": str(dropout)}
    stored = open_if_current(folder, fingerprint)
    if stored is None:
        stored = write_store(
            folder, _encoded(texts, tokenizer, dropout), tokenizer.vocab_size, fingerprint
        )
    return stored


def _encoded(texts: Iterable[str], tokenizer: Encoder, dropout: float) -> Iterator[list[int]]:
    """Encode in batches of 4,096 texts, for speed."""
    lines = iter(texts)
    while batch := list(islice(lines, 4096)):
        yield from tokenizer.encode_batch(batch, dropout)
