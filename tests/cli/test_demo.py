"""`qkv demo` empties no folder but its own; that it learns and translates is shown by the tests that run alone."""

import sys

import pytest
import typer

from qkv.cli import main
from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.train.lock import locked


def test_a_folder_that_is_no_demo_is_not_emptied(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(QkvError) as error:
        run(["demo", "--out", str(tmp_path), "--again"])
    assert (
        str(error.value)
        == f"{tmp_path}: not a folder of this demo, so it is not emptied; choose another --out"
    )
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_demo_that_is_being_trained_is_not_emptied(tmp_path):
    for name in ("train.tsv", "valid.tsv", "recipe.json"):
        (tmp_path / name).write_text("x")
    with locked(tmp_path), pytest.raises(QkvError, match="another training runs here"):
        run(["demo", "--out", str(tmp_path), "--again"])
    assert (tmp_path / "train.tsv").exists()


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "demo").write_text("x")
    with pytest.raises(QkvError) as error:
        run(["demo", "--out", str(tmp_path / "demo")])
    assert "\n" not in str(error.value) and (tmp_path / "demo").read_text() == "x"


def test_leaving_at_the_question_is_no_traceback(tmp_path, monkeypatch):
    def leave(*asked, **named):
        raise typer.Abort

    (tmp_path / "model.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["qkv", "demo", "--out", str(tmp_path)])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", leave)
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 130
