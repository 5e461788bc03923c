"""Atomic writes: a file is complete or absent, and no temporary file remains."""

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from qkv.errors import QkvError
from qkv.files import atomic_path, check_output, check_output_folder


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
    check_output(tmp_path / "none" / "deeper" / "a.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(QkvError) as error:
        check_output(tmp_path / "file" / "a.txt")
    assert str(error.value) == f"{tmp_path}/file/a.txt: cannot be written; choose another path"


def test_a_link_is_kept_and_its_target_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "a.txt")
    for text in ("new file", "replaced"):
        with atomic_path(tmp_path / "link") as unfinished:
            unfinished.write_text(text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "a.txt").read_text() == text


def test_a_name_of_255_bytes_can_be_written(tmp_path):
    check_output(tmp_path / ("a" * 255))
    with atomic_path(tmp_path / ("a" * 255)) as unfinished:
        unfinished.write_text("x")
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


def test_a_device_is_written_to_and_not_replaced():
    screen, terminal = os.openpty()
    device = os.ttyname(terminal)
    check_output(Path(device), suffixes=(".png",))
    with atomic_path(device) as unfinished:
        unfinished.write_text("text")
    assert os.read(screen, 100) == b"text" and Path(device).is_char_device()
    with pytest.raises(QkvError) as error, atomic_path("/dev/full") as unfinished:
        unfinished.write_text("text")
    assert str(error.value) == (
        "/dev/full: cannot be written (No space left on device); "
        "check the folder and the free space"
    )
    os.close(screen)
    os.close(terminal)


def test_the_reader_of_a_fifo_may_exit(tmp_path):
    os.mkfifo(tmp_path / "fifo")

    def read_one_byte() -> None:
        with (tmp_path / "fifo").open("rb", buffering=0) as reader:
            reader.read(1)

    Thread(target=read_one_byte, daemon=True).start()
    with pytest.raises(BrokenPipeError), atomic_path(tmp_path / "fifo") as unfinished:
        unfinished.write_bytes(bytes(1 << 20))


@contextmanager
def without_privileges():
    """Run as an ordinary user, whom permissions restrict."""
    user = os.getresuid()
    if user[0] == 0:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(*user)


def test_permissions_are_checked_before_long_work():
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.txt").write_text("old")
        (folder / "a.txt").chmod(0o444)
        folder.chmod(0o555)
        line = "{path}: cannot be written; choose another path"
        for path in (folder / "a.txt", folder / "new.txt", folder / "new" / "a.txt"):
            with without_privileges(), pytest.raises(QkvError) as error:
                check_output(path)
            assert str(error.value) == line.format(path=path)
        folder.chmod(0o777)
        with without_privileges(), pytest.raises(QkvError) as error:
            check_output(folder / "a.txt")
        assert str(error.value) == line.format(path=folder / "a.txt")
        with without_privileges():
            check_output(folder / "new.txt")
            check_output_folder(folder / "new", is_own=False)


def test_what_is_no_file_name_is_refused():
    for name in ("a\0b", "a\ud800"):
        with pytest.raises(QkvError) as error:
            check_output(Path(name))
        escaped = name.encode("unicode_escape").decode()
        assert str(error.value) == f"{escaped}: not a file name; choose another path"


def test_an_unfinished_file_does_not_make_a_folder_another_one(tmp_path):
    (tmp_path / ".a.unfinished").write_text("")
    check_output_folder(tmp_path, is_own=False)
    (tmp_path / "a").write_text("")
    check_output_folder(tmp_path, is_own=True)
    with pytest.raises(QkvError, match="contains other files, such as a; choose another folder"):
        check_output_folder(tmp_path, is_own=False)
