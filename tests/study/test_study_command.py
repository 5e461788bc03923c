"""`qkv study` and `qkv.study.run`: lists, files in both languages, JSON, errors in one line."""

import json
import subprocess
import sys

import pytest

import qkv
from qkv.cli.app import run
from qkv.study.question import STUDIES, load_question

QUICK = ["--quick", "--seeds", "2"]


def test_the_list_has_every_study_and_its_question(capsys):
    assert run(["study", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["study"] for row in rows] == qkv.study.names() == list(STUDIES)
    assert run(["study", "--list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(STUDIES)


def test_the_list_does_not_import_torch():
    code = "import sys; from qkv.cli.app import run; run(['study', '--list']); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_complete(name):
    """Every study says what is equal and what is published, and its table and figure exist."""
    question = load_question(name)
    assert question.published and question.experiments
    for experiment in question.experiments.values():
        assert experiment.equal and experiment.columns and len(experiment.conditions) > 0
        for key, condition in experiment.conditions.items():
            assert key == key.lower() and not set(key) & set("/ _")
            assert "{" not in condition.text


def test_a_quick_study_writes_its_files(tmp_path, capsys):
    folder = tmp_path / "scale"
    assert run(["study", "scale", *QUICK, "--out", str(folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "study.json").read_text(encoding="utf-8"))
    ratios = [
        row["variance"]["mean"] / int(name[1:])
        for name, row in printed["experiments"]["scores"]["summary"].items()
    ]
    assert ratios == pytest.approx([1] * 7, rel=0.05)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert f"qkv study scale --seeds 2 --steps {printed['steps']}" in page
    assert printed["conclusion"] in page and "Held equal:" in page
    for name in ("README.zh.md", "study.png", "study.zh.png"):
        assert (folder / name).stat().st_size > 500


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["scal"], "scal: no such study; did you mean 'scale'?"),
        (["scale", "--seeds", "0"], "seeds: 0 is out of range; use 1 to 100"),
        (["scale", "--minutes", "nan"], "minutes: nan is out of range; use 0.1 to 100,000"),
        (
            ["scale", "--quick", "--minutes", "3"],
            "quick: minutes and quick both set the length; give one of them",
        ),
        (
            ["scale", "--source", "a.zh", "--target", "a.en"],
            "--source: this study does not read it; it reads --text",
        ),
        (["scale", "--text", "none.txt"], "none.txt: no such file; check the path"),
        (["scale", "--source", "a.zh"], "source: needs a target, and a target a source; give both"),
    ],
)
def test_an_error_is_one_line(words, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(qkv.QkvError) as error:
        run(["study", *words])
    assert str(error.value) == line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_quickly(name, tmp_path):
    study = qkv.study.run(name, tmp_path / name, quick=True, seeds=2)
    assert study.conclusion and study.record["experiments"]
    assert (study.folder / "README.md").is_file() and (study.folder / "study.png").is_file()
