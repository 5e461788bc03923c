"""Language model windows: every token is a target, in a computed pseudorandom order."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.documents import Documents, DocumentSlice, NewDocuments, count_bytes, store_documents
from qkv.data.windows import DocumentWindows, PackedWindows, permute
from qkv.errors import QkvError
from qkv.text.train_tokenizer import train_tokenizer

EOS = 0


def target_counts(rows, n):
    """Return how often each of the ids 0 .. n - 1 is a target."""
    return np.bincount(np.concatenate([row[1:] for row in rows]), minlength=n)


@given(st.integers(1, 500), st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4))
def test_the_order_of_windows_is_a_permutation(n, keys):
    assert sorted(permute(index, n, keys) for index in range(n)) == list(range(n))


def test_the_order_is_uncorrelated():
    order = np.array([permute(index, 1_000, [1, 2, 3, 4]) for index in range(1_000)])
    assert abs(np.corrcoef(order, np.arange(1_000))[0, 1]) < 0.1
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.1


@given(st.integers(9, 200), st.integers(1, 8), st.integers(0, 3))
def test_every_token_is_a_target_in_every_epoch_of_packed_windows(n, context_length, seed):
    windows = PackedWindows(np.arange(n), context_length, batch_tokens=context_length, seed=seed)
    for epoch in range(2):
        counts = target_counts(
            [windows.rows(epoch * len(windows) + step)[0] for step in range(len(windows))], n
        )
        assert (
            counts.min() >= 1
            and counts.sum() == windows.per_epoch * context_length < n + context_length
        )


def test_a_packed_row_is_a_slice_of_the_cyclic_stream():
    windows = PackedWindows(np.arange(50), context_length=7, batch_tokens=21, seed=3)
    for step in range(12):
        rows = windows.rows(step)
        assert len(rows) == 3
        for row, start in zip(rows, windows.starts(step), strict=True):
            assert row.tolist() == [(start + i) % 50 for i in range(8)]


def test_each_epoch_has_another_offset_and_order():
    windows = PackedWindows(np.arange(1_000), context_length=10, batch_tokens=10, seed=1)
    first, second = (
        [windows.starts(epoch * 100 + step)[0] for step in range(100)] for epoch in range(2)
    )
    assert {start % 10 for start in first} != {start % 10 for start in second}
    assert first != second and len(set(first)) == 100


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: PackedWindows(ids, 8, 32, seed=5),
        lambda ids: DocumentWindows(ids, EOS, 8, 32, seed=5),
    ],
    ids=["packed", "documents"],
)
def test_the_order_is_a_pure_function_and_processes_divide_the_rows(make):
    ids = np.random.default_rng(0).integers(0, 9, 400)
    windows, again = make(ids), make(ids)
    single = [[row.tolist() for row in windows.rows(step)] for step in range(12)]
    assert [[row.tolist() for row in again.rows(step)] for step in (11, 3, 7)] == [
        single[11],
        single[3],
        single[7],
    ]
    parallel = [
        [row.tolist() for row in again.rows(step, rank, 3)]
        for step in range(4)
        for rank in range(3)
    ]
    assert parallel == single


def test_document_windows_do_not_cross_documents():
    lengths = [1, 30, 8, 9, 16, 3]
    ids = np.concatenate([[*range(10 * k + 1, 10 * k + n), EOS] for k, n in enumerate(lengths, 1)])
    windows = DocumentWindows(ids, EOS, context_length=8, batch_tokens=24, seed=2)
    rows = [row for step in range(len(windows)) for row in windows.rows(step)]
    assert all(EOS not in row[1:-1].tolist() and len(row) <= 9 for row in rows)
    assert sum(len(row) - 1 for row in rows) == len(ids)
    targets = sorted(id for row in rows for id in row[1:].tolist())
    assert targets == sorted(ids.tolist())
    begins = [row for row in rows if row[0] == EOS]
    assert len(begins) == len(lengths)


def test_rows_of_document_windows_fit_the_budget():
    ids = np.random.default_rng(1).integers(0, 12, 3_000)
    windows = DocumentWindows(ids, EOS, context_length=16, batch_tokens=64, seed=2)
    for step in range(len(windows)):
        rows = windows.rows(step)
        assert len(rows) * max(len(row) - 1 for row in rows) <= 64


@pytest.mark.parametrize(
    ("n", "context_length", "batch_tokens", "line"),
    [
        (
            8,
            8,
            64,
            "text: 8 tokens do not fill one window of context_length 8; "
            "give more text or reduce context_length",
        ),
        (
            99,
            16,
            15,
            "batch_tokens: 15 is less than context_length 16; increase it or reduce context_length",
        ),
    ],
)
def test_a_text_or_budget_below_one_window_is_an_error(n, context_length, batch_tokens, line):
    with pytest.raises(QkvError) as error:
        PackedWindows(np.arange(n), context_length, batch_tokens, seed=1)
    assert str(error.value) == line


# ── documents on disk ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def library(tmp_path):
    """Two text files in a folder and a JSONL of three documents, one without text."""
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("one two\nthree\n", encoding="utf-8")
    (tmp_path / "books" / "b.md").write_text("四五六\n", encoding="utf-8")
    (tmp_path / "more.jsonl").write_text(
        '{"text": "seven"}\n{"text": ""}\n{"text": "eight"}\n', encoding="utf-8"
    )
    return [tmp_path / "books", tmp_path / "more.jsonl"]


def test_documents_are_one_stream_of_ids_with_eos_after_each(library, tmp_path):
    texts = ["one two\nthree\n", "四五六\n", "seven", "eight"]
    tokenizer = train_tokenizer("char", texts)
    ids = store_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id).ids
    assert ids.tolist() == [
        id for text in texts for id in [*tokenizer.encode(text), tokenizer.eos_id]
    ]


@given(fraction=st.floats(0.01, 0.99))
def test_two_slices_partition_the_characters(tmp_path_factory, fraction):
    path = tmp_path_factory.mktemp("part") / "a.jsonl"
    path.write_text('{"text": "one two"}\n{"text": "三四五"}\n{"text": "six"}\n', encoding="utf-8")
    documents = Documents([path])
    middle = int(documents.characters * fraction)
    parts = [list(DocumentSlice(documents, *span)) for span in ((0, middle), (middle, 13))]
    assert "".join(text for part in parts for text, _ in part) == "one two三四五six"
    assert all(part[-1][1] for part in parts if part), "each part ends in <eos>"
    assert count_bytes(documents) == len("one two三四五six".encode())


@given(texts=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=30), cut=st.integers(1, 29))
def test_a_held_out_document_is_never_a_training_document(tmp_path_factory, texts, cut):
    path = tmp_path_factory.mktemp("repeated") / "a.jsonl"
    lines = [json.dumps({"text": f"{text} {text}"}) + "\n" for text in texts]
    path.write_text("".join(lines), encoding="utf-8")
    documents, middle = Documents([path]), 3 * min(cut, len(texts) - 1)
    train = DocumentSlice(documents, 0, middle)
    held_out = NewDocuments(DocumentSlice(documents, middle, 3 * len(texts)), train)
    known = {text for text, _ in train}
    expected = [f"{text} {text}" for text in texts[middle // 3 :]]
    assert [text for text, _ in held_out] == [text for text in expected if text not in known]


def test_stored_ids_are_reused_until_the_text_or_tokenizer_changes(library, tmp_path):
    tokenizer, other = (
        train_tokenizer("char", ["one two three four"]),
        train_tokenizer("char", ["one two"]),
    )
    first = store_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id)
    before = (tmp_path / "ids" / "ids.bin").stat().st_mtime_ns
    store_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id)
    assert (tmp_path / "ids" / "ids.bin").stat().st_mtime_ns == before
    again = store_documents(tmp_path / "ids", Documents(library), other, other.eos_id)
    assert again.ids.tolist() != first.ids.tolist()
    library[1].write_text('{"text": "one"}\n', encoding="utf-8")
    changed = store_documents(tmp_path / "ids", Documents(library), other, other.eos_id)
    assert len(changed.ids) < len(again.ids)


def test_a_text_longer_than_a_piece_is_read_as_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.data.corpus._PIECE_CHARS", 50)
    text = "".join(f"line {n} of a long text\n" for n in range(300))
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    tokenizer = train_tokenizer("char", [text])
    assert len(list(Documents([tmp_path / "long.txt"]))) > 50
    store = store_documents(
        tmp_path / "ids", Documents([tmp_path / "long.txt"]), tokenizer, tokenizer.eos_id
    )
    assert store.ids.tolist() == [*tokenizer.encode(text), tokenizer.eos_id]
