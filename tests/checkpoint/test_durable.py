"""Durable saves: a crash or a full disk at every single file operation."""

import errno
import os
import re
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from qkv.checkpoint import disk
from qkv.checkpoint.durable import (
    current_folder,
    packed,
    read_tensors,
    remove_folder,
    verify_folder,
    write_file,
    write_folder,
)
from qkv.errors import QkvError

OPERATIONS = ("make_folder", "fill", "sync", "rename", "delete_file", "delete_folder")
OLD, NEW = {"w": torch.arange(6.0)}, {"w": torch.arange(6.0) * 10}


class Crash(BaseException):
    """The process is killed: no handler runs."""


class FailingDisk:
    """Replaces the operations of `disk`: at the k-th, the process is killed or the call fails."""

    def __init__(self, monkeypatch, at=None, error=None):
        self.count, self.at, self.error, self.dead, self.failed = 0, at, error, False, None
        self.unsynced: dict[int, Path] = {}
        for name in OPERATIONS:
            monkeypatch.setattr(disk, name, partial(self.run, name, getattr(disk, name)))

    def run(self, name, operation, *paths):
        if self.dead:
            raise Crash
        self.count += 1
        if self.count == self.at:
            self.failed = name
            self.fail(name, operation, *paths)
        operation(*paths)
        self.track_sync(name, *paths)

    def track_sync(self, name, path, *_):
        if name == "fill":
            self.unsynced[path.stat().st_ino] = path
        if name == "sync":
            self.unsynced.pop(path.stat().st_ino, None)

    def fail(self, name, operation, *paths):
        if name == "fill":  # half of the file is written
            operation(*paths)
            os.truncate(paths[0], paths[0].stat().st_size // 2)
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.dead = True
        raise Crash

    def lose_unsynced(self, folder):
        """Power failure: files that were never synced become empty."""
        for file in [child for child in folder.rglob("*") if child.is_file()]:
            if file.stat().st_ino in self.unsynced:
                os.truncate(file, 0)


def save_one_folder(path, tensors):
    write_folder(path, {"model.safetensors": packed(tensors), "note.json": b'{"a": 1}'})


def saved_values(path):
    return read_tensors(verify_folder(path) / "model.safetensors")["w"].tolist()


def operations_of(act, monkeypatch):
    with monkeypatch.context() as patch:
        failing = FailingDisk(patch)
        act()
    return failing.count


def names_in(folder):
    return sorted(child.name for child in folder.iterdir())


def crash_at(k, act, monkeypatch, folder):
    with monkeypatch.context() as patch:
        failing = FailingDisk(patch, at=k)
        with pytest.raises(Crash):
            act()
    failing.lose_unsynced(folder)


@pytest.mark.parametrize("existing", [False, True])
def test_a_crash_at_any_operation_leaves_a_complete_old_or_new_folder(
    tmp_path, monkeypatch, existing
):
    def fresh(name):
        path = tmp_path / name / "model"
        if existing:
            save_one_folder(path, OLD)
        return path

    total = operations_of(partial(save_one_folder, fresh("count"), NEW), monkeypatch)
    assert total >= 12 if existing else total >= 9
    for k in range(1, total + 1):
        path = fresh(f"crash-{k}")
        crash_at(k, partial(save_one_folder, path, NEW), monkeypatch, tmp_path)
        if existing or current_folder(path).exists():
            assert saved_values(path) in (OLD["w"].tolist(), NEW["w"].tolist())
        save_one_folder(path, NEW)
        assert saved_values(path) == NEW["w"].tolist()
        assert names_in(path.parent) == ["model"], k


def test_a_crash_during_recovery_loses_nothing(tmp_path, monkeypatch):
    def interrupted(name):
        path = tmp_path / name / "model"
        save_one_folder(path, OLD)
        renames = [k for k in range(1, 20) if operation_at(k, path) == "rename"]
        crash_at(renames[1], partial(save_one_folder, path, NEW), monkeypatch, tmp_path)
        assert names_in(path.parent)[0] == ".model.old"
        return path

    def operation_at(k, path):
        with monkeypatch.context() as patch:
            failing = FailingDisk(patch, at=k, error=errno.EIO)
            with suppress(QkvError):
                save_one_folder(path, OLD)
        return failing.failed

    total = operations_of(partial(save_one_folder, interrupted("count"), NEW), monkeypatch)
    for k in range(1, total + 1):
        path = interrupted(f"crash-{k}")
        crash_at(k, partial(save_one_folder, path, NEW), monkeypatch, tmp_path)
        assert saved_values(path) in (OLD["w"].tolist(), NEW["w"].tolist())
        save_one_folder(path, NEW)
        assert names_in(path.parent) == ["model"]


@pytest.mark.parametrize("existing", [False, True])
def test_a_full_disk_at_any_operation_is_one_line_and_leaves_no_temporary_files(
    tmp_path, monkeypatch, existing
):
    path = tmp_path / "runs" / "model"
    if existing:
        save_one_folder(path, OLD)
    total = (
        operations_of(partial(save_one_folder, tmp_path / "count" / "model", NEW), monkeypatch) + 5
    )
    refused = 0
    for k in range(1, total + 1):
        with monkeypatch.context() as patch:
            failing = FailingDisk(patch, at=k, error=errno.ENOSPC)
            try:
                save_one_folder(path, NEW)
            except QkvError as error:
                refused += 1
                assert str(error) == (
                    f"{path}: not saved, the disk is full; "
                    "free some space and try again (the previous version is intact)"
                )
                assert not existing or saved_values(path) == OLD["w"].tolist()
                assert [child.name for child in tmp_path.glob("runs/*")] == (
                    ["model"] if existing else []
                )
                assert existing or not current_folder(path).exists()
                continue
        assert saved_values(path) == NEW["w"].tolist()
        assert failing.failed in (None, "delete_file", "delete_folder")
        save_one_folder(path, OLD)
        assert names_in(path.parent) == ["model"]
        if not existing:
            remove_folder(path)
    assert refused >= 9


def test_a_crash_at_any_operation_leaves_a_complete_old_or_new_file(tmp_path, monkeypatch):
    total = operations_of(lambda: write_file(tmp_path / "count", b"new, and longer"), monkeypatch)
    for k in range(1, total + 1):
        path = tmp_path / f"{k}" / "metrics"
        write_file(path, b"old")
        crash_at(k, partial(write_file, path, b"new, and longer"), monkeypatch, tmp_path)
        assert path.read_bytes() in (b"old", b"new, and longer")
        write_file(path, b"newer")
        assert path.read_bytes() == b"newer" and names_in(path.parent) == ["metrics"]


def test_a_crash_while_deleting_leaves_the_complete_folder_or_none(tmp_path, monkeypatch):
    save_one_folder(tmp_path / "count", OLD)
    total = operations_of(partial(remove_folder, tmp_path / "count"), monkeypatch)
    for k in range(1, total + 1):
        path = tmp_path / f"{k}" / "model"
        save_one_folder(path, OLD)
        crash_at(k, partial(remove_folder, path), monkeypatch, tmp_path)
        assert not current_folder(path).exists() or saved_values(path) == OLD["w"].tolist()
        write_file(path.parent / "next", b"")
        assert names_in(path.parent) in (["model", "next"], ["next"])


def test_files_are_synced_before_the_rename_and_the_old_version_is_deleted_last(
    tmp_path, monkeypatch
):
    path, log = tmp_path / "model", []
    save_one_folder(path, OLD)
    for name in OPERATIONS:

        def run(*paths, name=name, operation=getattr(disk, name)):
            log.append((name, re.sub(r"qkv-\w+", "qkv", paths[0].name)))
            operation(*paths)

        monkeypatch.setattr(disk, name, run)
    save_one_folder(path, NEW)
    files, work = ["model.safetensors", "note.json", "manifest.json"], ".model.qkv.tmp"
    assert log == [
        ("make_folder", work),
        *(("fill", file) for file in files),
        *(("sync", file) for file in files),
        ("sync", work),
        ("rename", "model"),
        ("rename", work),
        ("sync", tmp_path.name),
        *(("delete_file", file) for file in sorted(files)),
        ("delete_folder", ".model.old"),
    ]


def test_a_write_error_of_the_system_is_one_line(tmp_path):
    save_one_folder(tmp_path / "model", OLD)
    script = """
import resource, sys, torch
from qkv.checkpoint.durable import packed, write_folder, write_file
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
for content in (packed({"w": torch.zeros(9000)}), b"0" * 9001):
    try:
        write_folder(sys.argv[1], {"model.safetensors": content, "note.json": b"{}"})
    except Exception as error:
        print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "model"], capture_output=True, text=True
    )
    line = (
        f"QkvError {tmp_path}/model: not saved (File too large); "
        "check the folder and its permissions (the previous version is intact)"
    )
    assert done.stdout.splitlines() == [line, line]
    assert saved_values(tmp_path / "model") == OLD["w"].tolist() and names_in(tmp_path) == ["model"]


def test_only_temporary_folders_of_ended_processes_are_deleted(tmp_path):
    script = """
import sys, time
from pathlib import Path
from qkv.checkpoint.disk import scratch
with scratch(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(60)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "model"], stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        write_file(tmp_path / "a", b"a")
        assert len(names_in(tmp_path)) == 2
        other.kill()
    write_file(tmp_path / "a", b"a")
    assert names_in(tmp_path) == ["a"]


def test_a_folder_with_unknown_files_is_not_replaced(tmp_path):
    save_one_folder(tmp_path / "model", OLD)
    (tmp_path / "model" / "thesis.txt").write_text("text")
    with pytest.raises(QkvError) as refused:
        save_one_folder(tmp_path / "model", NEW)
    assert str(refused.value) == (
        f"{tmp_path}/model: contains files that saving would delete (thesis.txt); "
        "move it or save to another folder"
    )
    assert names_in(tmp_path) == ["model"] and (tmp_path / "model" / "thesis.txt").exists()


def test_saving_through_a_link_keeps_the_link(tmp_path):
    save_one_folder(tmp_path / "first", OLD)
    (tmp_path / "best").symlink_to("first")
    save_one_folder(tmp_path / "best", NEW)
    assert (tmp_path / "best").is_symlink() and saved_values(tmp_path / "first") == NEW[
        "w"
    ].tolist()


def test_saved_tensors_have_the_permissions_of_other_files(tmp_path):
    save_one_folder(tmp_path / "model", OLD)
    plain, weights = (
        (tmp_path / "model" / name).stat().st_mode for name in ("note.json", "model.safetensors")
    )
    assert plain == weights
