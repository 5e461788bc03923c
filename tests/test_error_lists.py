"""A list of names in an error is cut after ten, with the count of the rest."""

import json

import pytest
import torch
from safetensors.torch import save_file

from qkv.checkpoint.durable import write_folder
from qkv.checkpoint.folder import load_model, save_model
from qkv.errors import QkvError
from qkv.messages import listed, set_language
from qkv.model.presets import preset
from qkv.model.spec_io import from_json, to_json
from qkv.model.transformer import Transformer
from qkv.train.recipe import TranslateRecipe
from qkv.train.recipe_reader import validated


def line_of(call, *arguments: object) -> str:
    with pytest.raises(QkvError) as error:
        call(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("language, rest", [("en", "9, and 2,990 more"), ("zh", "9、")])
def test_a_list_has_ten_names_and_the_count_of_the_rest(language, rest):
    set_language(language)
    try:
        assert listed(range(3000)).startswith("0") and rest in listed(range(3000))
        assert listed(range(10)).endswith("9")
        assert listed(range(30), None).endswith("29")
    finally:
        set_language("en")


def test_weights_that_are_missing_or_unknown_are_cut(tmp_path):
    save_model(tmp_path, Transformer(preset("tiny")), {})
    (tmp_path / "manifest.json").unlink()
    save_file({f"w{i:03}": torch.zeros(1) for i in range(500)}, tmp_path / "model.safetensors")
    line = line_of(load_model, tmp_path)
    n_missing = len(Transformer(preset("tiny")).state_dict())
    assert f"{n_missing} weights missing (" in line and f"and {n_missing - 10} more)" in line
    assert "500 unknown (w000, " in line and "w009, and 490 more)" in line
    assert len(line) < 1000


def test_fields_of_a_spec_and_options_of_a_recipe_are_cut():
    unknown = {f"field{i:03}": i for i in range(500)}
    tree = json.loads(to_json(preset("tiny"))) | unknown
    line = line_of(from_json, json.dumps(tree))
    assert "no field 'field000'" in line and line.endswith("| and 490 more")
    line = line_of(validated, TranslateRecipe, unknown, "a.yaml")
    assert "no option 'field009', and 490 more; " in line and "field010" not in line


def test_files_in_the_place_of_a_save_are_cut(tmp_path):
    (tmp_path / "model").mkdir()
    for number in range(300):
        (tmp_path / "model" / f"{number:03}.txt").write_text("")
    line = line_of(write_folder, tmp_path / "model", {"a.json": b"{}"})
    assert "(000.txt, " in line and "009.txt, and 290 more)" in line
