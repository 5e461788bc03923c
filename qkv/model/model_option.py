"""The `model` option of a recipe and of `qkv model new`: a preset, its arguments, and overrides of the spec.

In: a mapping such as {preset: tiny, layers: 6, decoder.layers.0.mixer.n_kv_heads: 1}. Out: the mapping written out, and
the spec. A plain value under the name of an argument of the preset is that argument; every other key is a path in
model.json, and its value replaces what is there. Told in docs/model.md, "A preset, its arguments, overrides".
"""

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from qkv.errors import QkvError, expected_value, near_miss
from qkv.messages import _
from qkv.model.door import CHOICES, complaint, from_json, to_json
from qkv.model.possible import Problem
from qkv.model.presets import PRESETS, RENAMED, find_preset
from qkv.model.spec import Spec
from qkv.text.lines import read_text

MAY_BE_ZERO = ("convolution", "n_experts")  # all other whole numbers among the arguments are at least 1
FIELDS = [field.name for field in fields(Spec)]
SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # 1e6, which YAML reads as text


def complete_option(model: object, default: str) -> dict[str, Any]:
    """The option with its preset, all arguments of the preset and the overrides written out.

    A name alone is a preset. A mapping without a preset, as recipes had before there were presets with arguments, holds
    arguments of `default`, the preset of the task.
    """
    given = {"preset": model} if isinstance(model, str) else model
    if not isinstance(given, dict):
        right = _("use a preset's name, the path of a model.json, or a preset with arguments")
        raise QkvError("model", _("cannot be {model!r}", model=model), right)
    name = str(given.get("preset", default))
    name = RENAMED.get(name, name)
    rest = {str(key): value for key, value in given.items() if key != "preset"}
    return {"preset": name, **_checked(name, rest)}


def build_spec(option: Mapping[str, Any], where: str = "model") -> Spec:
    """The spec of a completed option: the preset with its arguments, then the overrides, shorter paths first."""
    name, known = option["preset"], arguments_of(option["preset"])
    overrides = {key: value for key, value in option.items() if key != "preset"}
    arguments = {key: overrides.pop(key) for key in [*overrides] if _is_argument(key, overrides[key], known)}
    spec = _read(Path(name)) if is_file(name) else find_preset(name)(**arguments)
    if not overrides:
        return spec
    tree = json.loads(to_json(spec))
    for path in sorted(overrides, key=_order):
        _put(tree, path, _number(overrides[path]), where)
    return from_json(json.dumps(tree, default=str), where)


def arguments_of(name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a preset; a model.json has none."""
    return {} if is_file(name) else dict(inspect.signature(find_preset(name)).parameters)


def is_file(name: str) -> bool:
    return name.endswith(".json") and name not in PRESETS


def _is_argument(key: str, value: object, known: Mapping[str, Any]) -> bool:
    """Arguments are plain values; objects, lists and null (where a spec has such a field) replace a part of the spec."""
    return key in known and not isinstance(value, dict | list) and (value is not None or key not in FIELDS)


def _checked(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All arguments with their values, then the overrides; unknown names and values of a wrong type are refused."""
    known, problems = arguments_of(name), list[Problem]()
    arguments = {key: one.default for key, one in known.items() if key != "vocab_size"}  # it comes from the tokenizer
    overrides = {}
    for key, value in given.items():
        if _is_argument(key, value, known):
            arguments[key] = _argument(key, value, known[key], problems)
        elif key.partition(".")[0] in FIELDS:
            overrides[key] = value
        else:
            wrong = _("'{name}' has no argument '{key}', nor has a spec such a field", name=name, key=key)
            problems.append(("", wrong, near_miss(key.partition(".")[0], dict.fromkeys([*known, *FIELDS]))))
    if problems:
        raise complaint("model", problems)
    # An object under the name of an argument (positions: {kind: rotary, base: 500000}) takes that argument's place.
    return arguments | overrides


def _argument(key: str, value: Any, parameter: inspect.Parameter, problems: list[Problem]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    try:
        value = TypeAdapter(parameter.annotation).validate_python(value)
    except ValidationError as error:
        wrong = _("cannot be {value!r}", value=value)
        problems.append((key, wrong, expected_value(error.errors()[0])))
        return value
    least = 0 if key in MAY_BE_ZERO else 1
    if type(value) is int and value < least:
        problems.append((key, _("cannot be {value}", value=value), _("use at least {least}", least=least)))
    return value


def _read(path: Path) -> Spec:
    if not path.is_file():
        right = _("give a model.json or a preset")
        raise QkvError(path, _("no such file"), right)
    return from_json(read_text(path), str(path))


# ── Overrides ────────────────────────────────────────────────────────────────────────────────────────────────────
def _order(path: str) -> tuple[int, bool]:
    """Whole objects before their fields, and a kind before the other fields, so that the order of the keys does not matter."""
    return path.count("."), not path.endswith(".kind")


def _put(tree: Any, path: str, value: Any, where: str) -> None:
    """Replace what is at `path`; door.py judges the result."""
    *parents, last = path.split(".")
    node = tree
    for depth, key in enumerate(parents, start=1):
        here = ".".join(parents[:depth])
        node, parent = node[_known(node, key, here, where)], node
        if node is None and depth == len(parents):
            node = parent[key] = {}
        if not isinstance(node, dict | list):
            wrong = _("{here} is {node}", here=here, node=json.dumps(node))
            raise QkvError(where, wrong, _("give {here} as a whole object", here=here))
    if last == "kind" and parents and (chosen := CHOICES.get(parents[-1], {}).get(str(value))):
        kept = {field.name for field in fields(chosen)}
        for name in [name for name in node if name not in kept]:
            del node[name]  # of the fields of the old kind, those that the new kind has stay
    if last in CHOICES and isinstance(value, str):
        value = {"kind": value}
    node[_known(node, last, path, where) if isinstance(node, list) else last] = value


def _known(node: Any, key: str, here: str, where: str) -> Any:
    """The key of a dict or the index of a list, if it is there."""
    keys = {str(index): index for index in range(len(node))} if isinstance(node, list) else {name: name for name in node}
    if key not in keys:
        raise QkvError(where, _("the spec has no '{here}'", here=here), near_miss(key, keys))
    return keys[key]


def _number(value: Any) -> Any:
    """The value with numbers such as 1e6 read as numbers."""
    match value:
        case dict(): return {key: _number(part) for key, part in value.items()}
        case list(): return [_number(part) for part in value]
        case str() if SCIENTIFIC.fullmatch(value): return float(value)
        case _: return value
