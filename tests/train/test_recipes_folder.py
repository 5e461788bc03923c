"""Every recipe in recipes/ can be read and its model can be built."""

from pathlib import Path

import pytest
import torch
import yaml

from qkv.model.transformer import Transformer
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import read_recipe
from qkv.train.task_specs import translation_spec

KINDS = {"translate": TranslateRecipe, "generate": GenerateRecipe, "embed": EmbedRecipe}
RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_a_recipe_is_read_and_its_model_built(path):
    kind = KINDS[yaml.safe_load(path.read_text(encoding="utf-8")).get("task", "translate")]
    recipe = read_recipe(kind, path)
    if kind is not TranslateRecipe:
        return  # their models are built in tests/train/test_generation.py and test_embedding.py
    with torch.device("meta"):
        model = Transformer(translation_spec(recipe.model, recipe.vocab_size, None))
    assert sum(weight.numel() for weight in model.parameters()) > 1_000_000


def test_there_are_recipes():
    assert {"multi30k-en-de", "multi30k-en-de-best", "tatoeba-zh-en"} <= {
        path.stem for path in RECIPES
    }
