"""What was written comes back, row by row; what was damaged does not come back at all."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.store import Store, StoreWriter, TextStore, reusable, write_store, write_texts
from qkv.errors import QkvError

MADE_FROM = {"files": "abc", "tokenizer": "def"}
SIZES = st.sampled_from([2, 256, 257, 65_536, 65_537, 200_000])
ROWS = SIZES.flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.lists(st.integers(0, size - 1), max_size=9)))
)


def small_store(folder: Path) -> Store:
    return write_store(folder, [[1, 2, 3], [], [40_000], [5, 6]], 50_000, MADE_FROM)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_any_rows_come_back_from_disk(drawn):
    vocab_size, rows = drawn
    with tempfile.TemporaryDirectory() as folder:
        write_store(folder, iter(rows), vocab_size, MADE_FROM)
        store = Store.open(folder)
        assert [store[i].tolist() for i in range(len(store))] == rows
        assert store.lengths.tolist() == [len(row) for row in rows]
        assert store.fingerprint == MADE_FROM


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_comes_back_from_disk(texts):
    with tempfile.TemporaryDirectory() as folder:
        store = write_texts(folder, iter(texts), {})
        assert list(store) == texts and len(store) == len(texts)
        assert store.take(reversed(range(len(texts)))) == texts[::-1]


def test_ids_take_two_bytes_up_to_65536_pieces_and_four_beyond(tmp_path):
    for vocab_size, width in [(200, 1), (65_536, 2), (65_537, 4)]:
        write_store(tmp_path, [[0, 1, 2], [3]], vocab_size, {})
        assert (tmp_path / "ids.bin").stat().st_size == 4 * width


def test_the_files_are_plain_little_endian_numbers(tmp_path):
    small_store(tmp_path)
    assert np.fromfile(tmp_path / "ids.bin", "<u2").tolist() == [1, 2, 3, 40_000, 5, 6]
    assert np.fromfile(tmp_path / "offsets.bin", "<i8").tolist() == [0, 3, 3, 4, 6]


def test_more_rows_than_are_held_in_memory_come_back(tmp_path):
    rows = [np.arange(n % 700) for n in range(3_000)]  # about a million ids: several flushes
    store = write_store(tmp_path, rows, 700, {})
    assert all(np.array_equal(store[i], rows[i]) for i in range(3_000))


def test_rows_are_counted_from_the_end_too_and_beyond_the_end_there_are_none(tmp_path):
    store = small_store(tmp_path)
    assert store[-1].tolist() == [5, 6]
    for outside in (4, -5):
        with pytest.raises(IndexError):
            store[outside]


def test_an_id_outside_the_vocabulary_is_not_written(tmp_path):
    for bad in ([7], [-1]):
        with pytest.raises(AssertionError, match="outside the vocabulary"):
            write_store(tmp_path, [[1], bad], 7, {})
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["store.json", "ids.bin", "offsets.bin"]),
    st.integers(0, 10_000),
    st.integers(1, 255),
)
def test_a_flipped_byte_anywhere_is_refused_by_name(name, place, flip):
    with tempfile.TemporaryDirectory() as folder:
        small_store(Path(folder))
        damaged = Path(folder) / name
        raw = bytearray(damaged.read_bytes())
        raw[place % len(raw)] ^= flip
        damaged.write_bytes(raw)
        with pytest.raises(QkvError, match=f"{name}: damaged") as refusal:
            Store.open(folder)
        assert "\n" not in str(refusal.value)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["store.json", "ids.bin", "offsets.bin"]), st.integers(0, 10_000))
def test_a_cut_file_is_refused_by_name(name, length):
    with tempfile.TemporaryDirectory() as folder:
        small_store(Path(folder))
        damaged = Path(folder) / name
        os.truncate(damaged, length % damaged.stat().st_size)
        with pytest.raises(QkvError, match=f"{name}: damaged"):
            Store.open(folder)


def test_a_refusal_says_which_file_what_is_wrong_and_what_to_do(tmp_path):
    small_store(tmp_path)
    os.truncate(tmp_path / "ids.bin", 8)
    with pytest.raises(QkvError) as refusal:
        Store.open(tmp_path)
    assert str(refusal.value) == (
        f"{tmp_path}/ids.bin: damaged: 8 bytes instead of 12; "
        "delete the folder, it is made anew from the text"
    )


def test_a_half_written_store_is_refused(tmp_path):
    writer = StoreWriter(tmp_path, 100, {})
    writer.__enter__()
    writer.add([1, 2, 3])  # and here the machine stops
    with pytest.raises(QkvError) as refusal:
        Store.open(tmp_path)
    assert str(refusal.value) == (
        f"{tmp_path}: no whole store: store.json is missing; "
        "delete the folder, it is made anew from the text"
    )
    small_store(tmp_path)  # the next writer tidies up
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ids.bin",
        "offsets.bin",
        "store.json",
    ]


def test_files_of_another_store_under_a_header_are_refused(tmp_path):
    small_store(tmp_path / "one")
    write_store(tmp_path / "two", [[1, 2, 4], [], [40_000], [5, 6]], 50_000, MADE_FROM)
    shutil.copy(tmp_path / "one" / "store.json", tmp_path / "two" / "store.json")
    with pytest.raises(
        QkvError, match=r"ids.bin: damaged: its bytes are not those that were written"
    ):
        Store.open(tmp_path / "two")


def test_an_error_while_writing_leaves_the_old_store_as_it_was(tmp_path):
    small_store(tmp_path)
    with pytest.raises(ZeroDivisionError):
        write_store(tmp_path, ([7 // n] for n in (1, 0)), 100, {})
    assert Store.open(tmp_path)[0].tolist() == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_disk_without_room_is_said_in_one_line_and_leaves_no_rubbish(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(QkvError) as refusal:
            write_store(tmp_path, [range(60_000)], 60_000, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(refusal.value) == f"{tmp_path}: cannot be written; File too large"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_keeps_what_it_opened_while_the_store_is_replaced(tmp_path):
    before = small_store(tmp_path)
    write_store(tmp_path, [[9]], 50_000, {})
    assert before[0].tolist() == [1, 2, 3]
    assert Store.open(tmp_path)[0].tolist() == [9]


def test_a_store_is_reused_only_when_it_is_whole_and_made_from_the_same(tmp_path):
    assert reusable(tmp_path, MADE_FROM) is None
    small_store(tmp_path)
    assert reusable(tmp_path, MADE_FROM) is not None
    assert reusable(tmp_path, MADE_FROM | {"tokenizer": "new"}) is None
    os.truncate(tmp_path / "offsets.bin", 3)
    assert reusable(tmp_path, MADE_FROM) is None


def test_text_and_ids_have_one_format(tmp_path):
    write_texts(tmp_path, ["我爱", "a"], {})
    assert bytes(Store.open(tmp_path)[0]).decode() == "我爱"
    assert TextStore.open(tmp_path)[-1] == "a"
