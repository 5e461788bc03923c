"""The page of the recipes, from their dataclasses."""

from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any, get_type_hints

from qkv.messages import _
from qkv.model.model_option import arguments_of
from qkv.model.presets import ARGUMENTS
from qkv.train.recipe import EmbedRecipe, GenerateRecipe, Recipe, TranslateRecipe
from qkv.train.recipe_reader import LIMITS, explain
from reference.markdown import code, generated, limits, table, text, type_name

Row = tuple[str, str, str, str]
KINDS: tuple[type[Recipe], ...] = (TranslateRecipe, GenerateRecipe, EmbedRecipe)


def page() -> str:
    """The options of each task, then those that all tasks have."""
    parts = [text("# Recipes", "# 配方"), generated("qkv/train/recipe.py"), introduction()]
    for kind in KINDS:
        parts += section(kind)
    common = {field.name for field in fields(Recipe)} - {"model"}
    parts += [
        text("## Options of every task", "## 所有任务的选项"),
        options_table(row for row in rows(Recipe) if row[0].strip("`") in common),
        text("## Model", "## 模型"),
        model_introduction(),
        options_table(model_rows()),
    ]
    return "\n\n".join(parts) + "\n"


def introduction() -> str:
    return text(
        "A recipe is a YAML file with options of a training run; an option that it leaves out has "
        "its default. `--set KEY=VALUE` overrides the file, and `qkv train TASK --explain` prints "
        "the options of a task. [Training](../guides/training.md) explains them in context. In "
        "Python, a recipe is an object: `qkv.train.TranslateRecipe(steps=500)`.",
        "配方是 YAML 文件，写有一次训练的选项；没有写出的选项取默认值。`--set KEY=VALUE` "
        "覆盖文件中的值，`qkv train TASK --explain` 打印一个任务的选项。"
        "[训练](../guides/training.md)结合用法解释这些选项。在 Python 中，配方是一个对象："
        "`qkv.train.TranslateRecipe(steps=500)`。",
    )


def model_introduction() -> str:
    defaults = ", ".join(code(kind.default_preset) for kind in KINDS)
    return text(
        "`model` is the name of a [preset](model-json.md#presets), the path of a model.json, or a "
        "mapping: `preset`, arguments of the preset, and overrides by path, such as "
        f"`decoder.layers.0.mixer.window`. Without a preset, it is {defaults} (translate, "
        "generate, embed); these have the arguments:",
        "`model` 是[预设](model-json.md#预设)的名字、model.json 的路径，或一个映射：`preset`、"
        "预设的参数，以及按路径的覆盖，如 `decoder.layers.0.mixer.window`。没有给出预设时用 "
        f"{defaults}（translate、generate、embed），它们的参数如下：",
    )


def section(kind: type[Recipe]) -> Iterator[str]:
    """The options that only this task has."""
    task = fields_by_name(kind)["task"].default
    own = [row for row in rows(kind) if row[0].strip("`") in kind.__annotations__]
    yield f"## {task}"
    yield text(f"Options of `qkv train {task}` only.", f"仅用于 `qkv train {task}` 的选项。")
    yield options_table(own)


def fields_by_name(kind: type[Recipe]) -> dict[str, "Field[Any]"]:
    return {field.name: field for field in fields(kind)}


def rows(kind: type[Recipe]) -> Iterator[Row]:
    """The options as `--explain` prints them, with their types and ranges."""
    hints = get_type_hints(kind)
    for name, default, explanation in explain(kind):
        if not name.startswith("model."):
            range_ = limits(*LIMITS[name][:2]) if name in LIMITS else ""
            type_ = ", ".join(filter(None, [type_name(hints[name]), range_]))
            yield code(name), type_, code(as_yaml(default)), explanation


def model_rows() -> Iterator[Row]:
    """The arguments of the tasks' presets."""
    known = arguments_of(Recipe.default_preset)
    for name, explanation in ARGUMENTS.items():
        annotation, default = known[name].annotation, known[name].default
        yield code(f"model.{name}"), type_name(annotation), code(as_yaml(default)), _(explanation)


def as_yaml(default: object) -> str:
    """A default as it is written in the file: `null`, `true`, `[]`."""
    return {"None": "null", "True": "true", "False": "false", "()": "[]"}.get(
        str(default), str(default)
    )


def options_table(found: Any) -> str:
    header = text("option", "选项"), text("type", "类型"), text("default", "默认值")
    return table((*header, text("description", "说明")), found)
