"""`qkv compare`: settings, scores and curves of real runs."""

import json

import pytest
from PIL import Image

from qkv.cli.app import run
from qkv.errors import QkvError
from qkv.evaluate import figures

TINY = ["model.layers=1", "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "threads=1"]
SETTINGS = [*TINY, "steps=6", "save_every=6", "validate_every=3", "vocab_size=300"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two translation runs that differ in two settings, and a language model."""
    root = tmp_path_factory.mktemp("runs")
    text = "".join(f"low lower {n} lowest\n" for n in range(60))
    (root / "a.txt").write_text(text)
    (root / "b.txt").write_text("".join(f"{line[::-1]}\n" for line in text.splitlines()))
    pairs = ["--source", str(root / "a.txt"), "--target", str(root / "b.txt")]
    different = {
        "plain": [*pairs, "--set", "label_smoothing=0"],
        "smooth": [*pairs, "--set", "label_smoothing=0.2", "--set", "model.d_ff=48"],
        "lm": ["--text", str(root / "a.txt")],
    }
    for name, options in different.items():
        task = "generate" if name == "lm" else "translate"
        common = [word for setting in SETTINGS for word in ("--set", setting)]
        run(["train", task, "--out", str(root / name), *common, *options])
    return root


@pytest.fixture
def compare(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)

    def call(*arguments: str) -> str:
        capsys.readouterr()
        run(["compare", *arguments])
        return capsys.readouterr().out

    return call


def entries(folder, kind):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [entry for entry in lines if entry["kind"] == kind]


def test_the_settings_that_differ_and_the_best_scores_are_reported(compare, runs, tmp_path):
    picture = tmp_path / "x.png"
    report = json.loads(compare("plain", "smooth", "--out", str(picture), "--json"))
    assert report["runs"] == ["plain", "smooth"] and report["figure"] == str(picture)
    assert report["settings"] == {"label_smoothing": [0, 0.2], "model.d_ff": [32, 48]}
    for column, name in enumerate(report["runs"]):
        valid = entries(runs / name, "valid")
        own = {key: row[column] for key, row in report["scores"].items()}
        assert own["cross_entropy"] == min(entry["loss"] for entry in valid)
        assert own["bleu"] == max(entry["bleu"] for entry in valid)
        assert (own["step"], own["tokens"]) == (6, entries(runs / name, "train")[-1]["tokens"])


def test_training_and_validation_are_the_same_quantity(runs):
    """The smoothed objective is not the cross-entropy; without smoothing they are equal."""
    for name, equal in (("plain", True), ("smooth", False), ("lm", True)):
        for entry in entries(runs / name, "train"):
            assert (entry["loss"] == pytest.approx(entry["cross_entropy"], rel=1e-5)) == equal


def test_the_figure_has_a_panel_for_each_quantity_and_a_line_for_each_run(
    compare, tmp_path, monkeypatch
):
    saved, save = [], figures.save
    monkeypatch.setattr(
        figures, "save", lambda figure, path: saved.append(figure) or save(figure, path)
    )
    compare("plain", "smooth", "lm", "--out", str(tmp_path / "x.png"))
    panels = {axes.get_ylabel(): axes for axes in saved[0].axes}
    assert list(panels) == [
        "cross-entropy (nats per token)",
        "BLEU",
        "learning rate",
        "training objective",
    ]
    lines = {line.get_label(): line for line in panels["cross-entropy (nats per token)"].lines}
    assert list(lines) == [
        f"{name}: {kind}"
        for name in ("plain", "smooth", "lm")
        for kind in ("training", "validation")
    ]
    assert [line.get_label() for line in panels["training objective"].lines] == ["smooth: training"]
    assert lines["smooth: validation"].get_xdata().tolist() == [3, 6]
    with Image.open(tmp_path / "x.png") as image:
        assert image.format == "PNG"


def test_the_tables_are_printed(compare, tmp_path):
    lines = compare("plain", "smooth", "--out", str(tmp_path / "x.png")).splitlines()
    assert lines[0].split() == ["setting", "plain", "smooth"]
    assert [line.split() for line in lines[1:3]] == [
        ["label_smoothing", "0", "0.2"],
        ["model.d_ff", "32", "48"],
    ]
    assert lines[3] == "" and lines[4].split() == ["best", "score", "plain", "smooth"]
    assert lines[-1] == str(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plain"], "qkv compare: only one run; give two or more run folders"),
        (["plain", "none"], "none: no such folder; give the folder of a training run"),
        (
            ["plain", "plain/data"],
            "plain/data: not a training run: it has no train.yaml; "
            "give the folder of a training run",
        ),
        (["plain", "lm", "--out", "x.jpg"], "x.jpg: unknown file type '.jpg'; use .png"),
    ],
)
def test_errors_are_one_line(compare, arguments, line):
    with pytest.raises(QkvError) as error:
        compare(*arguments)
    assert str(error.value) == line
