"""A parallel corpus is read and encoded once, and again only when it has changed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from qkv.data.batches import BatchPlan
from qkv.data.corpus import Pairs
from qkv.data.hold_out import held_out_rows
from qkv.data.pairs import store_ids, store_pairs
from qkv.errors import QkvError


class Bytes:
    """A byte tokenizer with three special ids that counts the encoded texts."""

    vocab_size = 259

    def __init__(self, fingerprint: str = "bytes"):
        self.fingerprint, self.n_encoded = fingerprint, 0

    def encode_batch(self, texts: Sequence[str], dropout: float = 0.0) -> list[list[int]]:
        self.n_encoded += len(texts)
        return [[3 + byte for byte in text.encode()] for text in texts]


def text_of(ids: np.ndarray) -> str:
    return bytes(n - 3 for n in ids.tolist()).decode()


def small_corpus(folder: Path, last: str = "good morning") -> Pairs:
    (folder / "a.zh").write_text("你好\n\n早上好\n", encoding="utf-8")
    (folder / "a.en").write_text(f"hello\nunpaired\n{last}\n", encoding="utf-8")
    return Pairs(folder / "a.zh", folder / "a.en")


def test_stored_sides_are_aligned_and_dropped_pairs_counted(tmp_path):
    for _ in range(2):  # the second time from the store
        source, target = store_pairs(tmp_path / "stored", small_corpus(tmp_path))
        assert list(zip(source, target, strict=True)) == [
            ("你好", "hello"),
            ("早上好", "good morning"),
        ]
        assert source.rows.dropped == target.rows.dropped == 1


def test_texts_are_stored_again_only_when_the_files_have_changed(tmp_path):
    store_pairs(tmp_path / "stored", small_corpus(tmp_path))
    header = tmp_path / "stored" / "target" / "store.json"
    written = header.stat().st_mtime_ns
    store_pairs(tmp_path / "stored", small_corpus(tmp_path))
    assert header.stat().st_mtime_ns == written
    assert (
        store_pairs(tmp_path / "stored", small_corpus(tmp_path, "good night"))[1][1] == "good night"
    )


def test_ids_are_encoded_again_only_when_text_or_tokenizer_has_changed(tmp_path):
    tokenizer, other = Bytes(), Bytes("another")
    source, target = store_pairs(tmp_path / "stored", small_corpus(tmp_path))
    for encoder, texts, n_encoded in [
        (tokenizer, source, 2),
        (tokenizer, source, 2),
        (other, source, 2),
        (other, target, 4),
        (other, target, 4),
    ]:
        ids = store_ids(tmp_path / "ids", texts, encoder)
        assert encoder.n_encoded == n_encoded
        assert [text_of(row) for row in ids.take(range(2))] == list(texts)


def test_a_damaged_store_is_rebuilt_from_the_files(tmp_path):
    store_pairs(tmp_path / "stored", small_corpus(tmp_path))
    (tmp_path / "stored" / "source" / "ids.bin").write_bytes(b"garbage")
    assert list(store_pairs(tmp_path / "stored", small_corpus(tmp_path))[0]) == ["你好", "早上好"]


def test_an_invalid_corpus_leaves_no_store(tmp_path):
    pairs = small_corpus(tmp_path, "good\nmorning")
    with pytest.raises(QkvError, match="3 and 4 lines"):
        store_pairs(tmp_path / "stored", pairs)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(pairs.paths)


def test_batches_contain_all_lines_of_multi30k(shared, tmp_path):
    files = shared / "multi30k" / "val.en", shared / "multi30k" / "val.de"
    texts = store_pairs(tmp_path, Pairs(*files))
    source, target = (
        store_ids(tmp_path / f"{n}.ids", side, Bytes()) for n, side in enumerate(texts)
    )
    plan = BatchPlan(source.lengths + 1, target.lengths + 1, 4096, seed=1)
    order = np.concatenate([plan.batch(step) for step in range(len(plan))])
    lines = files[0].read_text("utf-8").split("\n")
    assert sorted(text_of(row) for row in source.take(order)) == sorted(
        s.strip() for s in lines[:-1]
    )
    assert texts[0].take(order[:9]) == [text_of(row) for row in source.take(order[:9])]


def numbered_corpus(folder: Path, n: int) -> Pairs:
    (folder / "n.tsv").write_text("".join(f"一{i}\tone {i}\n" for i in range(n)), encoding="utf-8")
    return Pairs(folder / "n.tsv")


def test_held_out_pairs_and_the_others_partition_the_corpus(tmp_path):
    pairs = numbered_corpus(tmp_path, 25)
    rows = held_out_rows(pairs, "n.tsv", "--valid-source")
    held_out, others = list(pairs.subset(rows)), list(pairs.subset(~rows))
    assert held_out == [("一5", "one 5"), ("一15", "one 15")]
    assert len(others) == 23 and sorted(held_out + others) == sorted(pairs)


def test_another_subset_of_the_same_files_is_stored_again(tmp_path):
    pairs = numbered_corpus(tmp_path, 25)
    sizes = [
        len(store_pairs(tmp_path / "stored", pairs.subset(np.arange(25) < size))[0])
        for size in (2, 5, 5, 2)
    ]
    assert sizes == [2, 5, 5, 2]
    assert store_pairs(tmp_path / "stored", pairs.subset(np.arange(25) > 22))[0][0] == "一23"
    assert len(store_pairs(tmp_path / "stored", pairs)[0]) == 25


def test_ids_are_encoded_again_only_for_another_dropout(tmp_path):
    tokenizer, (source, _) = (
        Bytes(),
        store_pairs(tmp_path / "stored", numbered_corpus(tmp_path, 25)),
    )
    for dropout, n_encoded in [(0.0, 25), (0.1, 50), (0.1, 50), (0.2, 75), (0.0, 100)]:
        store_ids(tmp_path / "ids", source, tokenizer, dropout)
        assert tokenizer.n_encoded == n_encoded
