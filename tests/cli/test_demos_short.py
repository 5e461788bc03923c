"""The demos with a training of seconds: output, files, and repetition from the recorded recipe."""

import json
import re
from importlib import import_module

import pytest
import yaml

from qkv.cli import demo_generate
from qkv.cli.app import run
from qkv.cli.demo import DEMOS
from qkv.cli.demo_recipe import MODEL
from qkv.data import builtin
from qkv.data.builtin import builtin_pairs
from qkv.data.builtin.recognizer import recognize
from qkv.errors import QkvError
from qkv.train.metrics import read_metrics

MINUTES = "0.1"
# Pairs: preparing and translating all of them takes longer than these trainings.
TRAINED, HELD_OUT = 3_000, 40
SMALL = {**MODEL, "layers": 1, "d_model": 64, "n_heads": 2, "d_ff": 128, "max_len": 64}
FIGURES = {"translate": "attention.png", "generate": "next-tokens.png", "embed": "similarity.png"}


def recipe_of(name: str) -> dict:
    return import_module(f"qkv.cli.demo_{name}").RECIPE


@pytest.fixture(scope="module", params=DEMOS)
def short(request, tmp_path_factory):
    """A demo with a smaller model, trained for seconds: its name, folder and output."""
    out = tmp_path_factory.mktemp("demo") / request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recipe_of(request.param), "model", SMALL)
        patch.setattr(demo_generate, "N_SAMPLES", 20)
        train, held_out = builtin_pairs()
        patch.setattr(builtin, "builtin_pairs", lambda: (train[:TRAINED], held_out[:HELD_OUT]))
        lines: list[str] = []
        patch.setattr(
            "builtins.print", lambda *values, **options: lines.append(" ".join(map(str, values)))
        )
        assert run(["demo", request.param, "--out", str(out), "--minutes", MINUTES]) == 0
    return request.param, out, "\n".join(lines)


def test_a_demo_prints_a_score_a_figure_and_the_next_commands(short):
    name, out, output = short
    score = {
        "translate": r"exact match [\d.]+%",
        "generate": r"perplexity [\d.]+ per character",
        "embed": r"recall@1 zh->en [\d.]+%",
    }
    assert re.search(score[name], output) and "Next: qkv" in output
    assert (out / FIGURES[name]).stat().st_size > 5_000 and str(out / FIGURES[name]) in output
    assert (out / "curves.png").stat().st_size > 5_000


def test_the_recorded_number_of_steps_is_that_of_the_run(short):
    name, out, _ = short
    recipe, chosen = (
        json.loads((out / "recipe.json").read_text()),
        yaml.safe_load((out / "train.yaml").read_text()),
    )
    assert recipe["max_minutes"] == float(MINUTES) and chosen["max_minutes"] == 0
    assert chosen["steps"] < recipe["steps"] == recipe_of(name)["steps"]
    assert read_metrics(out / "metrics.jsonl")[-1]["step"] == chosen["steps"]


def test_the_recorded_recipe_gives_the_same_weights(short, tmp_path, capsys):
    name, out, _ = short
    assert (
        run(
            [
                "train",
                name,
                "--recipe",
                str(out / "train.yaml"),
                "--out",
                str(tmp_path / "repeated"),
            ]
        )
        == 0
    )
    assert (tmp_path / "repeated" / "model.safetensors").read_bytes() == (
        out / "model.safetensors"
    ).read_bytes()


def test_a_folder_of_another_demo_is_rejected(short, capsys):
    name, out, _ = short
    other = "embed" if name != "embed" else "translate"
    before = (out / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(QkvError) as error:
        run(["demo", other, "--out", str(out), "--retrain"])
    assert (
        str(error.value)
        == f"{out}: contains the demo '{name}', not '{other}'; choose another --out"
    )
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_the_prompts_of_the_language_model_begin_sentences_of_the_grammar():
    from qkv.cli.demo_generate import PROMPT, held_out_prompts

    sentences = [pair.source for half in builtin_pairs() for pair in half]
    assert len(held_out_prompts()) == 100
    for prompt in [PROMPT, *held_out_prompts()]:
        assert any(sentence.startswith(prompt) for sentence in sentences)
    assert recognize("今天天气真好") is not None


def test_an_unknown_demo_is_one_line():
    with pytest.raises(QkvError) as error:
        run(["demo", "translat"])
    assert str(error.value) == "qkv demo: no demo 'translat'; did you mean 'translate'?"
