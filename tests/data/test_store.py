"""The memory-mapped store: round trips, atomic writing, and detection of damage."""

import os
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.data.store import (
    TEXT_VOCAB_SIZE,
    Store,
    StoreWriter,
    TextStore,
    open_if_current,
    write_store,
)
from qkv.errors import QkvError

FINGERPRINT = {"files": "abc", "tokenizer": "def"}
SIZES = st.sampled_from([2, 256, 257, 65_536, 65_537, 200_000])
ROWS = SIZES.flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.lists(st.integers(0, size - 1), max_size=9)))
)


def small_store(folder: Path) -> Store:
    return write_store(folder, [[1, 2, 3], [], [40_000], [5, 6]], 50_000, FINGERPRINT)


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_any_rows_round_trip(drawn):
    vocab_size, rows = drawn
    with tempfile.TemporaryDirectory() as folder:
        write_store(folder, iter(rows), vocab_size, FINGERPRINT)
        store = Store.open(folder)
        assert [store[i].tolist() for i in range(len(store))] == rows
        assert store.lengths.tolist() == [len(row) for row in rows]
        assert store.fingerprint == FINGERPRINT


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_any_text_round_trips(texts):
    with tempfile.TemporaryDirectory() as folder:
        store = TextStore(write_store(folder, iter(texts), TEXT_VOCAB_SIZE, {}))
        assert list(store) == texts and len(store) == len(texts)
        assert store.take(reversed(range(len(texts)))) == texts[::-1]


def test_ids_take_one_two_or_four_bytes_by_vocabulary_size(tmp_path):
    for vocab_size, width in [(200, 1), (65_536, 2), (65_537, 4)]:
        write_store(tmp_path, [[0, 1, 2], [3]], vocab_size, {})
        assert (tmp_path / "ids.bin").stat().st_size == 4 * width


def test_the_files_are_plain_little_endian_numbers(tmp_path):
    small_store(tmp_path)
    assert np.fromfile(tmp_path / "ids.bin", "<u2").tolist() == [1, 2, 3, 40_000, 5, 6]
    assert np.fromfile(tmp_path / "offsets.bin", "<i8").tolist() == [0, 3, 3, 4, 6]


def test_more_rows_than_the_buffer_round_trip(tmp_path):
    rows = [np.arange(n % 700) for n in range(3_000)]  # about a million ids: several flushes
    store = write_store(tmp_path, rows, 700, {})
    assert all(np.array_equal(store[i], rows[i]) for i in range(3_000))


def test_negative_indices_work_and_others_raise_index_errors(tmp_path):
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
def test_a_flipped_byte_is_detected_with_the_file_name(name, position, flip):
    with tempfile.TemporaryDirectory() as folder:
        small_store(Path(folder))
        damaged = Path(folder) / name
        raw = bytearray(damaged.read_bytes())
        raw[position % len(raw)] ^= flip
        damaged.write_bytes(raw)
        with pytest.raises(QkvError, match=f"{name}: damaged") as error:
            Store.open(folder)
        assert "\n" not in str(error.value)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["store.json", "ids.bin", "offsets.bin"]), st.integers(0, 10_000))
def test_a_truncated_file_is_detected_with_its_name(name, length):
    with tempfile.TemporaryDirectory() as folder:
        small_store(Path(folder))
        damaged = Path(folder) / name
        os.truncate(damaged, length % damaged.stat().st_size)
        with pytest.raises(QkvError, match=f"{name}: damaged"):
            Store.open(folder)


def test_an_error_has_the_file_the_problem_and_the_remedy(tmp_path):
    small_store(tmp_path)
    os.truncate(tmp_path / "ids.bin", 8)
    with pytest.raises(QkvError) as error:
        Store.open(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/ids.bin: damaged: 8 bytes instead of 12; "
        "delete the folder; it is rebuilt from the text"
    )


def test_an_incomplete_store_is_rejected(tmp_path):
    writer = StoreWriter(tmp_path, 100, {})
    writer.__enter__()
    writer.add([1, 2, 3])  # the process is killed here
    with pytest.raises(QkvError) as error:
        Store.open(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: incomplete store: store.json is missing; "
        "delete the folder; it is rebuilt from the text"
    )
    small_store(tmp_path)  # the next writer removes the temporary files
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ids.bin",
        "offsets.bin",
        "store.json",
    ]


def test_a_header_with_files_of_another_store_is_rejected(tmp_path):
    small_store(tmp_path / "one")
    write_store(tmp_path / "two", [[1, 2, 4], [], [40_000], [5, 6]], 50_000, FINGERPRINT)
    shutil.copy(tmp_path / "one" / "store.json", tmp_path / "two" / "store.json")
    with pytest.raises(QkvError, match=r"ids.bin: damaged: wrong checksum"):
        Store.open(tmp_path / "two")


def test_an_error_while_writing_keeps_the_old_store(tmp_path):
    small_store(tmp_path)
    with pytest.raises(ZeroDivisionError):
        write_store(tmp_path, ([7 // n] for n in (1, 0)), 100, {})
    assert Store.open(tmp_path)[0].tolist() == [1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(QkvError) as error:
            write_store(tmp_path, [range(60_000)], 60_000, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value) == f"{tmp_path}: cannot be written; File too large"
    assert list(tmp_path.iterdir()) == []


def test_an_open_store_is_unchanged_when_it_is_replaced(tmp_path):
    before = small_store(tmp_path)
    write_store(tmp_path, [[9]], 50_000, {})
    assert before[0].tolist() == [1, 2, 3]
    assert Store.open(tmp_path)[0].tolist() == [9]


def test_a_store_is_reused_only_if_complete_with_the_same_fingerprint(tmp_path):
    assert open_if_current(tmp_path, FINGERPRINT) is None
    small_store(tmp_path)
    assert open_if_current(tmp_path, FINGERPRINT) is not None
    assert open_if_current(tmp_path, FINGERPRINT | {"tokenizer": "new"}) is None
    os.truncate(tmp_path / "offsets.bin", 3)
    assert open_if_current(tmp_path, FINGERPRINT) is None


def test_text_and_ids_have_one_format(tmp_path):
    write_store(tmp_path, ["我爱", "a"], TEXT_VOCAB_SIZE, {})
    assert bytes(Store.open(tmp_path)[0]).decode() == "我爱"
    assert TextStore.open(tmp_path)[-1] == "a"
