"""Numbers of configs and recipes have a type and a range; memory is checked before a model."""

from dataclasses import fields
from typing import get_args, get_type_hints

import pytest

from qkv import memory
from qkv.errors import QkvError
from qkv.generate.config import (
    GENERATION_LIMITS,
    TRANSLATION_LIMITS,
    GenerationConfig,
    TranslationConfig,
)
from qkv.limits import NumberRange, format_number
from qkv.model.presets import preset
from qkv.pipeline.embed_options import EMBED_LIMITS, EmbedOptions
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, TranslateRecipe
from qkv.train.recipe_reader import LIMITS, validated
from qkv.train.task import check_training_memory

NUMBERS = [0, -1, 2.5, 1e-45, float("nan"), float("inf"), 10**6, 10**12, 10**30, 10**5000, "", "x"]
CONFIGS = {
    TranslationConfig: TRANSLATION_LIMITS,
    GenerationConfig: GENERATION_LIMITS,
    EmbedOptions: EMBED_LIMITS,
}
RECIPES = [TranslateRecipe, GenerateRecipe, EmbedRecipe]


def numeric_fields(kind: type) -> set[str]:
    hints = get_type_hints(kind)
    names = {field.name for field in fields(kind)}
    return {name for name in names if {int, float} & {hints[name], *get_args(hints[name])}}


def is_refused(make) -> bool:
    try:
        make()
    except QkvError as error:
        assert "\n" not in str(error) and len(str(error)) < 300
        return True
    return False


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_number_of_a_config_has_a_range(kind):
    names = numeric_fields(kind) - {"suppress_tokens", "allowed_token_ids", "stop_token_ids"}
    assert names == set(CONFIGS[kind])
    for name in names:
        refused = [value for value in NUMBERS if is_refused(lambda: kind(**{name: value}))]  # noqa: B023
        assert {-1, 10**30, 10**5000, "", "x"} <= set(refused) and len(refused) >= 8


@pytest.mark.parametrize("kind", RECIPES)
def test_every_number_of_a_recipe_has_a_range(kind):
    names = numeric_fields(kind)
    assert names <= set(LIMITS)
    for name in names:
        settings = [{name: value} for value in NUMBERS]
        refused = [is_refused(lambda: validated(kind, tree, "recipe")) for tree in settings]  # noqa: B023
        assert sum(refused) >= 6 and refused[-3:] == [True] * 3


def test_a_fraction_of_a_token_is_refused():
    with pytest.raises(QkvError) as caught:
        GenerationConfig(max_new_tokens=2.5)
    assert str(caught.value) == "max_new_tokens: cannot be 2.5 (float); use a whole number"


@pytest.mark.parametrize("value", [0, -1, 10**12, 10**30])
@pytest.mark.parametrize("name", ["n_heads", "d_model"])
def test_a_preset_refuses_sizes_without_a_loop_over_them(name, value):
    with pytest.raises(QkvError, match=f"model.{name}: .* is out of range; use 1 to 1,048,576"):
        preset("tiny", **{name: value})


def test_the_remedy_for_heads_lists_divisors_of_the_width():
    with pytest.raises(QkvError, match="12 does not divide into 1000000 heads; use 1, 2, 3, 4, 6"):
        preset("tiny", d_model=12, n_heads=10**6)


# ── Memory ────────────────────────────────────────────────────────────────────────────────────
def test_training_needs_sixteen_bytes_per_parameter(tmp_path, monkeypatch):
    spec = preset("tiny")
    needed = 16 * 2_605_056
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {needed // 1024} kB\n")
    check_training_memory(spec, "cpu")
    (tmp_path / "meminfo").write_text(f"MemAvailable: {needed // 1024 - 1} kB\n")
    check_training_memory(spec, "cuda")  # the weights only
    with pytest.raises(QkvError) as caught:
        check_training_memory(spec, "cpu")
    assert str(caught.value) == (
        "model: needs 0.0 GB of memory, 0.0 GB are available; "
        "use smaller sizes; qkv plan shows what they cost"
    )


def test_a_model_beyond_the_memory_is_refused_before_it_is_built():
    with pytest.raises(QkvError, match=r"^model: needs [\d,.]+ GB of memory, [\d,.]+ GB are"):
        check_training_memory(preset("tiny", d_model=100_000), "cpu")


def test_without_meminfo_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "missing")
    memory.check_memory("model", 10**30, "")


def test_a_range_shows_its_ends():
    assert NumberRange(0.5, 2**20).right() == "use 0.5 to 1,048,576"
    assert 0 in NumberRange(1, 2, or_zero=True) and 3 not in NumberRange(1, 2)


@pytest.mark.parametrize(
    "value, text",
    [
        (1024, "1,024"),
        (2.0, "2"),
        (1.0000001, "1.0000001"),
        (1e-320, "1e-320"),
        (1e30, "1e+30"),
        (float("nan"), "nan"),
        (-float("inf"), "-inf"),
        (10**400, "a very large number"),
    ],
)
def test_a_number_in_a_message_has_the_digits_that_tell_it_from_others(value, text):
    assert format_number(value) == text
