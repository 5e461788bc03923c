"""Windows over a long text: every token is a target, and the order is worked out from a few numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.documents import Documents, Part, count_bytes, keep_documents
from qkv.data.windows import DocumentWindows, PackedWindows, shuffled
from qkv.errors import QkvError
from qkv.text.learn import learn

EOS = 0


def counted(rows, n):
    """How often each of the ids 0 .. n - 1, here all different, is a target."""
    return np.bincount(np.concatenate([row[1:] for row in rows]), minlength=n)


@given(st.integers(1, 500), st.lists(st.integers(0, 2**64 - 1), min_size=4, max_size=4))
def test_the_order_of_windows_is_a_permutation(n, keys):
    assert sorted(shuffled(place, n, keys) for place in range(n)) == list(range(n))


def test_the_order_looks_like_chance():
    turns = np.array([shuffled(place, 1_000, [1, 2, 3, 4]) for place in range(1_000)])
    assert abs(np.corrcoef(turns, np.arange(1_000))[0, 1]) < 0.1
    assert abs(np.corrcoef(turns[1:], turns[:-1])[0, 1]) < 0.1


@given(st.integers(9, 200), st.integers(1, 8), st.integers(0, 3))
def test_every_token_is_a_target_in_every_epoch_of_packed_windows(n, context, seed):
    windows = PackedWindows(np.arange(n), context, batch_tokens=context, seed=seed)
    for epoch in range(2):
        times = counted(
            [windows.rows(epoch * len(windows) + step)[0] for step in range(len(windows))], n
        )
        assert times.min() >= 1 and times.sum() == windows.per_epoch * context < n + context


def test_a_packed_row_is_a_stretch_of_the_circle():
    windows = PackedWindows(np.arange(50), context=7, batch_tokens=21, seed=3)
    for step in range(12):
        rows = windows.rows(step)
        assert len(rows) == 3
        for row, start in zip(rows, windows.starts(step), strict=True):
            assert row.tolist() == [(start + i) % 50 for i in range(8)]


def test_each_epoch_cuts_elsewhere_and_goes_another_way():
    windows = PackedWindows(np.arange(1_000), context=10, batch_tokens=10, seed=1)
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
def test_the_order_is_a_pure_function_and_processes_share_the_work(make):
    ids = np.random.default_rng(0).integers(0, 9, 400)
    one, again = make(ids), make(ids)
    alone = [[row.tolist() for row in one.rows(step)] for step in range(12)]
    assert [[row.tolist() for row in again.rows(step)] for step in (11, 3, 7)] == [
        alone[11],
        alone[3],
        alone[7],
    ]
    shared = [
        [row.tolist() for row in again.rows(step, rank, 3)]
        for step in range(4)
        for rank in range(3)
    ]
    assert shared == alone


def test_no_row_of_document_windows_crosses_a_document():
    lengths = [1, 30, 8, 9, 16, 3]
    ids = np.concatenate([[*range(10 * k + 1, 10 * k + n), EOS] for k, n in enumerate(lengths, 1)])
    windows = DocumentWindows(ids, EOS, context=8, batch_tokens=24, seed=2)
    rows = [row for step in range(len(windows)) for row in windows.rows(step)]
    assert all(EOS not in row[1:-1].tolist() and len(row) <= 9 for row in rows)
    assert sum(len(row) - 1 for row in rows) == len(ids)
    targets = sorted(id for row in rows for id in row[1:].tolist())
    assert targets == sorted(ids.tolist())
    begins = [row for row in rows if row[0] == EOS]
    assert len(begins) == len(lengths)


def test_rows_of_document_windows_fit_the_budget():
    ids = np.random.default_rng(1).integers(0, 12, 3_000)
    windows = DocumentWindows(ids, EOS, context=16, batch_tokens=64, seed=2)
    for step in range(len(windows)):
        rows = windows.rows(step)
        assert len(rows) * max(len(row) - 1 for row in rows) <= 64


@pytest.mark.parametrize(
    ("n", "context", "batch_tokens", "line"),
    [
        (
            8,
            8,
            64,
            "text: 8 tokens are less than one window of 8; give more text or a shorter context",
        ),
        (99, 16, 15, "batch_tokens: 15 is less than one window of 16; raise it or shorten context"),
    ],
)
def test_what_cannot_be_cut_into_windows_is_said_in_one_line(n, context, batch_tokens, line):
    with pytest.raises(QkvError) as error:
        PackedWindows(np.arange(n), context, batch_tokens, seed=1)
    assert str(error.value) == line


# ---- documents on disk ---------------------------------------------------------------------------------------------


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


def test_documents_become_one_row_of_ids_with_an_end_after_each(library, tmp_path):
    texts = ["one two\nthree\n", "四五六\n", "seven", "eight"]
    tokenizer = learn("char", texts)
    ids = keep_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id).ids
    assert ids.tolist() == [
        id for text in texts for id in [*tokenizer.encode(text), tokenizer.eos_id]
    ]


@given(share=st.floats(0.01, 0.99))
def test_two_parts_hold_all_the_characters_once(tmp_path_factory, share):
    path = tmp_path_factory.mktemp("part") / "a.jsonl"
    path.write_text('{"text": "one two"}\n{"text": "三四五"}\n{"text": "six"}\n', encoding="utf-8")
    documents = Documents([path])
    cut = int(documents.characters * share)
    parts = [list(Part(documents, *span)) for span in ((0, cut), (cut, 13))]
    assert "".join(text for part in parts for text, _ in part) == "one two三四五six"
    assert all(part[-1][1] for part in parts if part), "each part ends in <eos>"
    assert count_bytes(documents) == len("one two三四五six".encode())


def test_ids_are_kept_until_the_text_or_the_tokenizer_changes(library, tmp_path):
    tokenizer, other = learn("char", ["one two three four"]), learn("char", ["one two"])
    made = keep_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id)
    before = (tmp_path / "ids" / "ids.bin").stat().st_mtime_ns
    keep_documents(tmp_path / "ids", Documents(library), tokenizer, tokenizer.eos_id)
    assert (tmp_path / "ids" / "ids.bin").stat().st_mtime_ns == before
    again = keep_documents(tmp_path / "ids", Documents(library), other, other.eos_id)
    assert again.ids.tolist() != made.ids.tolist()
    library[1].write_text('{"text": "one"}\n', encoding="utf-8")
    changed = keep_documents(tmp_path / "ids", Documents(library), other, other.eos_id)
    assert len(changed.ids) < len(again.ids)


def test_a_text_far_longer_than_a_piece_is_read_in_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr("qkv.data.corpus._PIECE", 50)
    text = "".join(f"line {n} of a long text\n" for n in range(300))
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    tokenizer = learn("char", [text])
    assert len(list(Documents([tmp_path / "long.txt"]))) > 50
    store = keep_documents(
        tmp_path / "ids", Documents([tmp_path / "long.txt"]), tokenizer, tokenizer.eos_id
    )
    assert store.ids.tolist() == [*tokenizer.encode(text), tokenizer.eos_id]
