"""The manifest of a saved folder: its hashes are correct, and any damage is detected."""

import json
import subprocess

import pytest
import torch

from qkv.checkpoint.durable import packed, verify_folder, write_folder
from qkv.errors import QkvError


def save_one_folder(path):
    write_folder(
        path, {"model.safetensors": packed({"w": torch.arange(6.0)}), "note.json": b'{"a": 1}'}
    )


def test_the_manifest_has_the_hashes_of_sha256sum(tmp_path):
    save_one_folder(tmp_path / "model")
    files = json.loads((tmp_path / "model" / "manifest.json").read_text())["files"]
    for name, entry in files.items():
        output = subprocess.run(
            ["sha256sum", tmp_path / "model" / name], capture_output=True, text=True
        ).stdout
        assert (
            output.split()[0] == entry["sha256"]
            and (tmp_path / "model" / name).stat().st_size == entry["bytes"]
        )
    assert sorted(files) == ["model.safetensors", "note.json"]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda f: (f / "note.json").unlink(), "model/note.json: missing"),
        (lambda f: (f / "note.json").write_bytes(b"{}"), "model/note.json: 2 bytes instead of 8"),
        (
            lambda f: (f / "note.json").write_bytes(b'{"a": 2}'),
            "model/note.json: its content changed (SHA-256 differs)",
        ),
        (lambda f: (f / "more").write_bytes(b""), "model/more: not in the manifest"),
        (lambda f: (f / "more").mkdir(), "model/more: a folder, not a file"),
        (lambda f: (f / "manifest.json").unlink(), "model/manifest.json: missing or damaged"),
        (
            lambda f: (f / "manifest.json").write_bytes(b"[" * 100_000),
            "model/manifest.json: missing or damaged",
        ),
        (
            lambda f: [(f / n).unlink() for n in ("note.json", "model.safetensors")],
            "model/model.safetensors: missing, model/note.json missing",
        ),
    ],
)
def test_each_kind_of_damage_is_named_in_one_line(tmp_path, damage, line):
    save_one_folder(tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(QkvError) as refused:
        verify_folder(tmp_path / "model")
    assert str(refused.value) == f"{line}; restore it from a backup"


def test_any_changed_byte_of_a_manifest_is_detected(tmp_path):
    save_one_folder(tmp_path / "model")
    manifest = tmp_path / "model" / "manifest.json"
    written = manifest.read_bytes()
    for index in range(len(written)):
        manifest.write_bytes(written[:index] + bytes([written[index] ^ 1]) + written[index + 1 :])
        with pytest.raises(QkvError):
            verify_folder(tmp_path / "model")
