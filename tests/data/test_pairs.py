"""A pair corpus is read and encoded once, and again only when it has changed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from qkv.data.batches import BatchPlan
from qkv.data.corpus import Pairs
from qkv.data.pairs import Share, keep_ids, keep_pairs
from qkv.errors import QkvError


class Bytes:
    """The simplest tokenizer there is: UTF-8 bytes, after three special ids. It counts its work."""

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
    (folder / "a.en").write_text(f"hello\nnobody\n{last}\n", encoding="utf-8")
    return Pairs(folder / "a.zh", folder / "a.en")


def test_both_sides_are_kept_in_step_and_what_was_dropped_is_remembered(tmp_path):
    for _ in range(2):  # the second time from disk
        source, target = keep_pairs(tmp_path / "kept", small_corpus(tmp_path))
        assert list(zip(source, target, strict=True)) == [
            ("你好", "hello"),
            ("早上好", "good morning"),
        ]
        assert source.rows.dropped == target.rows.dropped == 1


def test_texts_are_read_again_only_when_the_files_have_changed(tmp_path):
    keep_pairs(tmp_path / "kept", small_corpus(tmp_path))
    header = tmp_path / "kept" / "target" / "store.json"
    written = header.stat().st_mtime_ns
    keep_pairs(tmp_path / "kept", small_corpus(tmp_path))
    assert header.stat().st_mtime_ns == written
    assert keep_pairs(tmp_path / "kept", small_corpus(tmp_path, "good night"))[1][1] == "good night"


def test_ids_are_encoded_again_only_when_text_or_tokenizer_has_changed(tmp_path):
    tokenizer, other = Bytes(), Bytes("another")
    source, target = keep_pairs(tmp_path / "kept", small_corpus(tmp_path))
    for encoder, texts, n_encoded in [
        (tokenizer, source, 2),
        (tokenizer, source, 2),
        (other, source, 2),
        (other, target, 4),
        (other, target, 4),
    ]:
        ids = keep_ids(tmp_path / "ids", texts, encoder)
        assert encoder.n_encoded == n_encoded
        assert [text_of(row) for row in ids.take(range(2))] == list(texts)


def test_a_damaged_store_is_made_anew_from_the_files(tmp_path):
    keep_pairs(tmp_path / "kept", small_corpus(tmp_path))
    (tmp_path / "kept" / "source" / "ids.bin").write_bytes(b"rubbish")
    assert list(keep_pairs(tmp_path / "kept", small_corpus(tmp_path))[0]) == ["你好", "早上好"]


def test_a_corpus_that_is_refused_leaves_no_store_behind(tmp_path):
    pairs = small_corpus(tmp_path, "good\nmorning")
    with pytest.raises(QkvError, match="3 lines against 4"):
        keep_pairs(tmp_path / "kept", pairs)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(pairs.paths)


def test_multi30k_goes_from_files_to_batches_and_none_of_it_is_lost(shared, tmp_path):
    files = shared / "multi30k" / "val.en", shared / "multi30k" / "val.de"
    texts = keep_pairs(tmp_path, Pairs(*files))
    source, target = (
        keep_ids(tmp_path / f"{n}.ids", side, Bytes()) for n, side in enumerate(texts)
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


def test_a_share_is_held_out_and_all_the_others_are_left(tmp_path):
    pairs = numbered_corpus(tmp_path, 25)
    held, left = list(Share(pairs, 10, True)), list(Share(pairs, 10, False))
    assert held == [("一5", "one 5"), ("一15", "one 15")]
    assert len(left) == 23 and sorted(held + left) == sorted(pairs)


def test_another_share_of_the_same_files_is_read_again(tmp_path):
    pairs = numbered_corpus(tmp_path, 25)
    sizes = [
        len(keep_pairs(tmp_path / "kept", Share(pairs, every, True))[0]) for every in (10, 5, 5, 10)
    ]
    assert sizes == [2, 5, 5, 2]
    assert len(keep_pairs(tmp_path / "kept", pairs)[0]) == 25


def test_another_dropout_is_encoded_again_and_the_same_is_kept(tmp_path):
    tokenizer, (source, _) = Bytes(), keep_pairs(tmp_path / "kept", numbered_corpus(tmp_path, 25))
    for dropout, n_encoded in [(0.0, 25), (0.1, 50), (0.1, 50), (0.2, 75), (0.0, 100)]:
        keep_ids(tmp_path / "ids", source, tokenizer, dropout)
        assert tokenizer.n_encoded == n_encoded
