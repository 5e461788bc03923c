"""The three demos with seconds instead of minutes: what they print and record, and that the record repeats them."""

import json
import re

import pytest
import yaml

from qkv.cli import demo as demos
from qkv.cli import demo_generate
from qkv.cli.app import run
from qkv.data import builtin
from qkv.data.builtin import builtin_pairs
from qkv.data.builtin.recognizer import recognize
from qkv.errors import QkvError
from qkv.train.report import read_metrics

MINUTES = "0.1"
TRAINED, HELD_OUT = (
    3_000,
    40,
)  # pairs: preparing and translating all of them takes longer than these trainings
SMALL = {
    "layers": 1,
    "d_model": 64,
    "n_heads": 2,
    "d_ff": 128,
    "dropout": 0.05,
    "positions": "rotary",
    "qk_norm": True,
    "max_len": 64,
}
FIGURES = {"translate": "attention.png", "generate": "next-tokens.png", "embed": "similarity.png"}


@pytest.fixture(scope="module", params=list(demos.DEMOS))
def short(request, tmp_path_factory):
    """A demo of a smaller model, trained for some seconds: (its name, its folder, what it printed)."""
    out = tmp_path_factory.mktemp("demo") / request.param
    with pytest.MonkeyPatch.context() as patch:
        module = demos.DEMOS[request.param].module
        patch.setitem(module.RECIPE, "model", SMALL)
        patch.setattr(demo_generate, "SAMPLES", 20)
        train, held_out = builtin_pairs()
        patch.setattr(builtin, "builtin_pairs", lambda: (train[:TRAINED], held_out[:HELD_OUT]))
        lines: list[str] = []
        patch.setattr(
            "builtins.print", lambda *words, **options: lines.append(" ".join(map(str, words)))
        )
        assert run(["demo", request.param, "--out", str(out), "--minutes", MINUTES]) == 0
    return request.param, out, "\n".join(lines)


def test_a_demo_prints_its_score_its_figure_and_the_next_commands(short):
    name, out, told = short
    score = {
        "translate": r"exact match [\d.]+%",
        "generate": r"perplexity [\d.]+ per character",
        "embed": r"recall@1 zh->en [\d.]+%",
    }
    assert re.search(score[name], told) and "Next: qkv" in told
    assert (out / FIGURES[name]).stat().st_size > 5_000 and str(out / FIGURES[name]) in told
    assert (out / "curves.png").stat().st_size > 5_000


def test_a_demo_records_fewer_steps_than_its_recipe_and_took_them(short):
    name, out, _ = short
    recipe, chosen = (
        json.loads((out / "recipe.json").read_text()),
        yaml.safe_load((out / "train.yaml").read_text()),
    )
    assert recipe["max_minutes"] == float(MINUTES) and chosen["max_minutes"] == 0
    assert chosen["steps"] < recipe["steps"] == demos.DEMOS[name].module.RECIPE["steps"]
    assert read_metrics(out / "metrics.jsonl")[-1]["step"] == chosen["steps"]


def test_the_recorded_recipe_gives_the_same_weights(short, tmp_path, capsys):
    name, out, _ = short
    assert (
        run(["train", name, "--recipe", str(out / "train.yaml"), "--out", str(tmp_path / "again")])
        == 0
    )
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        out / "model.safetensors"
    ).read_bytes()


def test_a_trained_demo_is_used_again_and_belongs_to_its_task(short, capsys):
    name, out, _ = short
    other = "embed" if name != "embed" else "translate"
    before = (out / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(QkvError) as error:
        run(["demo", other, "--out", str(out), "--again"])
    assert (
        str(error.value) == f"{out}: holds the demo '{name}', not '{other}'; choose another --out"
    )
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_the_prefixes_of_the_language_model_begin_sentences_of_the_grammar():
    from qkv.cli.demo_generate import PREFIX, prefixes

    sentences = [pair.source for half in builtin_pairs() for pair in half]
    assert len(prefixes()) == 100
    for prefix in [PREFIX, *prefixes()]:
        assert any(sentence.startswith(prefix) for sentence in sentences)
    assert recognize("今天天气真好") is not None


def test_an_unknown_demo_is_one_line():
    with pytest.raises(QkvError) as error:
        run(["demo", "translat"])
    assert str(error.value) == "qkv demo: no demo 'translat'; did you mean 'translate'?"
