"""Atomic writes: a file is complete or absent, and no temporary file remains."""

import errno

import pytest

from qkv.errors import QkvError
from qkv.files import atomic_path, refuse_unwritable


def test_a_reader_finds_the_old_file_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "deeper" / "a.txt"
    for text in ("old", "new"):
        with atomic_path(path) as unfinished:
            before = path.read_text() if path.exists() else None
            unfinished.write_text(text)
            assert (path.read_text() if path.exists() else None) == before
        assert path.read_text() == text
    assert [child.name for child in path.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(type(error)), atomic_path(tmp_path / "a.txt") as unfinished:
        unfinished.write_text("half")
        raise error
    assert [child.read_text() for child in tmp_path.iterdir()] == ["old"]


def test_a_disk_error_is_reported_in_one_line(tmp_path):
    with pytest.raises(QkvError) as error, atomic_path(tmp_path / "a.txt") as unfinished:
        unfinished.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(error.value) == (
        f"{tmp_path}/a.txt: cannot be written (No space left on device); "
        "check the folder and the free space"
    )
    assert not list(tmp_path.iterdir())
    with pytest.raises(QkvError) as error, atomic_path(tmp_path):
        pass
    assert str(error.value) == f"{tmp_path}: a folder, not a file; give the path of a file"


def test_an_unwritable_path_is_refused_before_long_work(tmp_path):
    refuse_unwritable(tmp_path / "none" / "deeper" / "a.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(QkvError) as error:
        refuse_unwritable(tmp_path / "file" / "a.txt")
    assert str(error.value) == f"{tmp_path}/file/a.txt: cannot be written; choose another path"
