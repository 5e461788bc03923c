"""`model` options of older versions build the same specs; written recipes are read back the same.

old_models.json: for recipes, demos and presets of commit 02a4b1a, the `model` of the recipe and the
spec that commit made of it. old_train.yaml: the train.yaml of a run of that commit.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from qkv.cli import demo_embed, demo_generate, demo_translate
from qkv.model.spec_io import from_json
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import read_recipe, rename_old
from qkv.train.task_specs import embedding_spec, generation_spec, translation_spec

OLD = json.loads(Path(__file__).with_name("old_models.json").read_text(encoding="utf-8"))
RECIPES = {
    path.stem: path for path in (Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml")
}
DEMOS = {"demo_translate": demo_translate, "demo_generate": demo_generate, "demo_embed": demo_embed}
KINDS = {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}


def spec_of(recipe):
    match recipe:
        case TranslateRecipe():
            return translation_spec(recipe.model, recipe.vocab_size, None)
        case GenerateRecipe():
            return generation_spec(recipe.model, recipe.vocab_size, recipe.context_length)
        case _:
            return embedding_spec(recipe.model, recipe.vocab_size, with_mlm_head=True)


def expected_spec(name):
    return from_json(json.dumps(OLD[name]["spec"]))


def read(tmp_path, task, tree):
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return read_recipe(KINDS[task], tmp_path / "train.yaml")


@pytest.mark.parametrize("name", OLD)
def test_an_old_form_builds_the_same_spec(tmp_path, name):
    task, expected = OLD[name]["task"], expected_spec(name)
    more = {"context_length": expected.max_len} if task == "generate" else {}
    recipe = read(
        tmp_path, task, {"model": OLD[name]["model"], "vocab_size": expected.vocab_size, **more}
    )
    assert spec_of(recipe) == expected
    (tmp_path / "again.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    again = read_recipe(KINDS[task], tmp_path / "again.yaml")
    assert again == recipe and spec_of(again) == expected


@pytest.mark.parametrize("name", RECIPES)
def test_a_shipped_recipe_builds_the_spec_of_its_old_form(name):
    recipe = read_recipe(KINDS[OLD[name]["task"]], RECIPES[name])
    assert "preset" in yaml.safe_load(RECIPES[name].read_text(encoding="utf-8"))["model"]
    assert spec_of(recipe) == expected_spec(name)


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_builds_the_spec_of_its_old_form(tmp_path, name):
    assert "preset" in DEMOS[name].RECIPE["model"]
    assert spec_of(read(tmp_path, OLD[name]["task"], DEMOS[name].RECIPE)) == expected_spec(name)


def test_a_default_recipe_in_python_builds_the_same():
    for task, kind in KINDS.items():
        assert spec_of(kind()) == expected_spec(f"default {task}")
        assert spec_of(replace(kind(), model={})) == expected_spec(f"default {task}")


def test_the_train_yaml_of_an_old_run_is_read():
    path = Path(__file__).with_name("old_train.yaml")
    old, recipe = (
        yaml.safe_load(path.read_text(encoding="utf-8")),
        read_recipe(TranslateRecipe, path),
    )
    tree = rename_old(old)
    assert "warmup" in old and "preset" not in old["model"]
    assert recipe.model == {"preset": "seq2seq", **tree["model"]}
    assert {key: getattr(recipe, key) for key in tree if key != "model"} == {
        key: tree[key] for key in tree if key != "model"
    }
