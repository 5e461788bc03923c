"""The page of model.json, from the dataclasses of the spec and the presets."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import takewhile
from typing import Any, get_args, get_type_hints

from qkv.model import spec as s
from qkv.model.check_spec import LEAST, MAX_WIDTH, MOST
from qkv.model.model_option import arguments_of
from qkv.model.presets import PRESETS, preset
from qkv.plan.cost import parameters
from reference.markdown import code, default, generated, limits, table, text, type_name

UNIONS: dict[tuple[str, str], Any] = {  # heading in both languages -> the types to choose from
    ("Positions", "位置编码"): s.Positions,
    ("Rotary scaling", "旋转位置编码的缩放"): s.Scaling,
    ("Token mixers", "词元混合层"): s.Mixer,
    ("Feed-forward", "前馈层"): s.FeedForward,
    ("Heads", "输出头"): s.Head,
}
SECTION = re.compile(r"(Args|Attributes|Examples?|Raises|Returns|Yields):|>>>")  # of a docstring
COMMENT = re.compile(r"^    (\w+): .*?  # (.*)$", re.M)


def page() -> str:
    """The types of a spec by what they describe, then the presets."""
    parts = ["# model.json", generated("qkv/model/spec.py"), introduction()]
    for heading, types in groups():
        parts.append(f"## {heading}")
        for part in types:
            parts += section(part)
    parts += [text("## Presets", "## 预设"), *presets()]
    return "\n\n".join(filter(None, parts)) + "\n"


def introduction() -> str:
    return text(
        "model.json is the spec of a model as JSON: an object of the type [Spec](#spec). Where a "
        "field has a choice of types, `kind` names the type. A field without a default is "
        "required; an unknown field is an error. `qkv model new PRESET --set KEY=VALUE` writes "
        "the file, `qkv model show` prints it with all shapes; [Model](../explanation/model.md) "
        "explains the parts. "
        f"Sizes without another limit are at most {MAX_WIDTH:,}.",
        "model.json 是模型 spec 的 JSON：类型为 [Spec](#spec) 的对象。字段可选多种类型时，"
        "`kind` 指明类型。没有默认值的字段必须给出；未知字段是错误。"
        "`qkv model new PRESET --set KEY=VALUE` 写出该文件，`qkv model show` 打印它和全部形状；"
        "[模型](../explanation/model.md)解释各个部分。类型的说明取自代码，为英文。"
        f"没有另行限制的尺寸最大为 {MAX_WIDTH:,}。",
    )


def groups() -> Iterator[tuple[str, list[type]]]:
    """Every dataclass of the spec once: the tree, each choice of types, and what several share."""
    every = [part for part in vars(s).values() if isinstance(part, type) and is_dataclass(part)]
    choices = {heading: list(get_args(union)) for heading, union in UNIONS.items()}
    count = [part for types in choices.values() for part in types]
    yield (
        text("Structure", "结构"),
        [part for part in reversed(every) if part not in count],  # Spec, Stack, Layer, Norm
    )
    for heading, types in choices.items():
        yield text(*heading), [part for part in types if count.count(part) == 1]
    shared = [part for part in every if count.count(part) > 1]
    yield text("Custom parts", "自定义部件"), shared


def section(part: type) -> Iterator[str]:
    """The docstring of a type and the table of its fields."""
    hints, comments = get_type_hints(part), dict(COMMENT.findall(inspect.getsource(part)))
    yield f"### {part.__name__}"
    yield description(part)
    rows = [
        (code(f.name), kind(f, hints[f.name]), default_of(f), comments.get(f.name, ""))
        for f in sorted(fields(part), key=lambda f: f.name != "kind")
    ]
    header = text("field", "字段"), text("type", "类型"), text("default", "默认值")
    yield table((*header, text("description", "说明")), rows)


def kind(field: "Field[Any]", hint: Any) -> str:
    """The type of a field and its range."""
    if not {int, float} & {hint, *get_args(hint)}:
        return type_name(hint)
    return ", ".join(
        filter(None, [type_name(hint), limits(LEAST.get(field.name), MOST.get(field.name))])
    )


def default_of(field: "Field[Any]") -> str:
    """The default; a `kind` that chooses a type must be given."""
    choice = field.name == "kind" and len(get_args(field.type)) == 1
    if choice or (field.default is MISSING and field.default_factory is MISSING):
        return text("required", "必需")
    value = field.default if field.default_factory is MISSING else field.default_factory()
    if is_dataclass(value):
        assert value == type(value)(), "the page names the kind only"
        return code(f'{{"kind": "{value.kind}"}}')
    return default(value)


def presets() -> Iterator[str]:
    """The presets with their sizes."""
    yield text(
        "`qkv model new NAME`, `qkv.preset(NAME)` and `model: NAME` in a recipe take these names; "
        "the arguments can be changed. In training, the tokenizer decides `vocab_size`.",
        "`qkv model new NAME`、`qkv.preset(NAME)` 和配方中的 `model: NAME` 接受这些名字；"
        "参数可以修改。训练时 `vocab_size` 由分词器决定。",
    )
    rows = [
        (
            code(name),
            f"{sum(parameters(preset(name)).values()):,}",
            description(PRESETS[name]),
            arguments(name),
        )
        for name in PRESETS
    ]
    header = text("preset", "预设"), text("parameters", "参数量"), text("model", "模型")
    yield table((*header, text("arguments and defaults", "参数与默认值")), rows)


def description(described: Any) -> str:
    """The docstring on one line, up to its first section or example."""
    paragraphs = (inspect.getdoc(getattr(described, "func", described)) or "").split("\n\n")
    prose = takewhile(lambda paragraph: not SECTION.match(paragraph), paragraphs)
    return " ".join(" ".join(prose).split())


def arguments(name: str) -> str:
    """The arguments as `name=default`, separated by commas."""
    found = arguments_of(name).values()
    return ", ".join(code(f"{parameter.name}={parameter.default}") for parameter in found)
