"""`qkv demo` deletes no folder but its own; other tests check training and scores."""

import sys

import pytest
import typer

from qkv.cli import main
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.train.lock import locked


def test_a_folder_that_is_not_a_demo_is_not_deleted(tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(QkvError) as error:
        run(["demo", "--out", str(tmp_path), "--retrain"])
    assert (
        str(error.value)
        == f"{tmp_path}: not a folder of this demo; it is not deleted; choose another --out"
    )
    assert (tmp_path / "notes.txt").read_text() == "text"


def test_a_demo_that_is_being_trained_is_not_deleted(tmp_path):
    for name in ("train.tsv", "valid.tsv", "recipe.json"):
        (tmp_path / name).write_text("x")
    with (
        locked(tmp_path),
        pytest.raises(QkvError, match="another training process uses this folder"),
    ):
        run(["demo", "--out", str(tmp_path), "--retrain"])
    assert (tmp_path / "train.tsv").exists()


def test_an_output_path_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "demo").write_text("x")
    with pytest.raises(QkvError) as error:
        run(["demo", "--out", str(tmp_path / "demo")])
    assert "\n" not in str(error.value) and (tmp_path / "demo").read_text() == "x"


def test_ctrl_c_at_the_question_is_not_a_traceback(tmp_path, monkeypatch):
    def abort(*arguments, **options):
        raise typer.Abort

    (tmp_path / "model.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["qkv", "demo", "--out", str(tmp_path)])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", abort)
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 130
