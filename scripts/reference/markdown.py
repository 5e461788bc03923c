"""Markdown that is the same on every machine: texts in the current language, tables, types."""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from html import escape
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from qkv.messages import current_language


def text(en: str, zh: str) -> str:
    """The text in the language of the page."""
    return zh if current_language() == "zh" else en


def generated(module: str) -> str:
    """The line under the title: from which code the page is written."""
    return text(
        f"Written from `{module}` by `python scripts/write_reference.py`: edit the code instead.",
        f"由 `python scripts/write_reference.py` 根据 `{module}` 生成：请修改代码。",
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; `|` and line breaks in a cell are escaped, and an empty table is no text."""
    lines = ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    head = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*head, *lines]) if lines else ""


def cell(value: str) -> str:
    """The text of a table cell: on one line, outside of code without `|` and HTML."""
    parts = re.split(r"(`[^`]*`)", " ".join(value.split()))
    assert not any("|" in part for part in parts[1::2]), "GitHub and mkdocs differ in `a|b`"
    parts[::2] = [escape(part, quote=False).replace("|", "\\|") for part in parts[::2]]
    return "".join(parts)


def code(value: object) -> str:
    """The value as code; nothing for an empty text."""
    return f"`{value}`" if str(value) else ""


def default(value: Any) -> str:
    """A default value as it is written in JSON, YAML and on the command line."""
    match value:
        case None:
            return code("null")
        case bool():
            return code(str(value).lower())
        case Enum():
            return code(value.value)
        case str() | int() | float() | Path():
            return code(value)
        case _:
            return code("[]" if value in ((), []) else "{}" if value == {} else repr(value))


NAMES = {
    bool: ("true or false", "true 或 false"),
    int: ("integer", "整数"),
    float: ("number", "小数"),
    str: ("text", "文本"),
    Path: ("path", "路径"),
    NoneType: ("`null`", "`null`"),
    Any: ("any", "任意"),
}


def type_name(annotation: Any) -> str:
    """A type in words: 'integer or `null`', '`pre`, `post`', 'list of Layer'."""
    if annotation in NAMES:
        return text(*NAMES[annotation])
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(code, inner))
    if origin in (Union, UnionType):
        return text(" or ", " 或 ").join(map(type_name, inner))
    if origin in (tuple, list):
        return text("list of ", "列表：") + type_name(inner[0])
    if origin is dict:
        return text("object: text to ", "对象：文本到 ") + type_name(inner[1])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(code(member.value) for member in annotation)
    return f"[{annotation.__name__}](#{annotation.__name__.lower()})"


def limits(least: float | None, most: float | None) -> str:
    """The range of a number, both ends included: '1 or more', '0 to 65535'."""
    if least is None and most is None:
        return ""
    if most is None:
        return text(f"{least} or more", f"不小于 {least}")
    if least is None:
        return text(f"at most {most}", f"不大于 {most}")
    return text(f"{least} to {most}", f"{least} 到 {most}")
