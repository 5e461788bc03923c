"""The `model` option of recipes and `qkv model new`: a preset, its arguments, spec overrides.

Example: {preset: tiny, layers: 6, decoder.layers.0.mixer.n_kv_heads: 1}. A plain value whose key is
an argument of the preset sets that argument; any other key is a path in model.json, and its value
replaces the value there. See docs/explanation/model.md, "Preset arguments and overrides".
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from qkv.arguments import displayed
from qkv.errors import QkvError, expected_value, near_miss
from qkv.limits import NumberRange, format_number
from qkv.messages import _
from qkv.model.check_spec import MAX_WIDTH, MOST
from qkv.model.presets import PRESETS, RENAMED, find_preset
from qkv.model.spec import Spec
from qkv.model.spec_io import CHOICES, OLD_FIELDS, from_json, rename_old, to_json
from qkv.pydantic_errors import FieldProblem, adapter, to_error
from qkv.text.lines import read_text

__all__ = ["build_spec", "complete_option"]

MAY_BE_ZERO = ("convolution", "n_experts")  # all other integer arguments are at least 1
FIELDS = [field.name for field in fields(Spec)]
SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # 1e6, which YAML reads as a string


def complete_option(model: object, default: str) -> dict[str, Any]:
    """The option with its preset, all arguments of the preset and the overrides.

    A string is the name of a preset. A mapping without a preset, as in old recipes, has arguments
    of `default`, the preset of the task.
    """
    given = {"preset": model} if isinstance(model, str) else model
    if not isinstance(given, dict):
        right = _("use a preset's name, the path of a model.json, or a preset with arguments")
        raise QkvError("model", _("cannot be {value}", value=displayed(model)), right)
    name = str(given.get("preset", default))
    name = RENAMED.get(name, name)
    rest = {str(key): value for key, value in given.items() if key != "preset"}
    return {"preset": name, **_checked(name, rest)}


def rename_old_option(model: Any) -> Any:
    """The option of an old recipe with the current names of arguments and of fields in paths."""
    if not isinstance(model, dict):
        return model
    renamed = {}
    for key, value in model.items():
        path = ".".join(OLD_FIELDS.get(part, part) for part in str(key).split("."))
        renamed[path] = rename_old({path.rpartition(".")[2]: value}).popitem()[1]
    return renamed


def build_spec(option: Mapping[str, Any], where: str = "model") -> Spec:
    """The spec of a completed option: the preset with its arguments, then overrides by depth."""
    overrides = dict(option)
    name = overrides.pop("preset")
    known = arguments_of(name)
    names = [key for key, value in overrides.items() if _is_argument(key, value, known)]
    spec = _builder(name)(**{key: overrides.pop(key) for key in names})
    if not overrides:
        return spec
    tree = json.loads(to_json(spec))
    # objects before their fields, and `kind` before the other fields
    for path in sorted(overrides, key=lambda path: (path.count("."), not path.endswith(".kind"))):
        _set_value(tree, path, _parse_numbers(overrides[path]), where)
    return from_json(json.dumps(tree, default=str), where)


def arguments_of(name: str) -> dict[str, inspect.Parameter]:
    """The arguments of a preset; a model.json has none."""
    return dict(inspect.signature(_builder(name)).parameters)


def is_file(name: str) -> bool:
    return name.endswith(".json") and name not in PRESETS


def _builder(name: str) -> Callable[..., Spec]:
    """The function of this preset, or one without arguments that reads this model.json."""
    return partial(_read, Path(name)) if is_file(name) else find_preset(name)


def _read(path: Path) -> Spec:
    if not path.is_file():
        raise QkvError(path, _("no such file"), _("give a model.json or a preset"))
    return from_json(read_text(path), str(path))


def _is_argument(key: str, value: object, known: Mapping[str, Any]) -> bool:
    """Whether it is an argument: objects, lists and null (for a field of Spec) are overrides."""
    plain = not isinstance(value, dict | list) and (value is not None or key not in FIELDS)
    return key in known and plain


def _checked(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """All arguments with their values, then the overrides; unknown names are errors."""
    known, problems = arguments_of(name), list[FieldProblem]()
    arguments = {key: parameter.default for key, parameter in known.items()}
    arguments.pop("vocab_size", None)  # it comes from the tokenizer
    overrides = {}
    for key, value in given.items():
        field = key.partition(".")[0]
        if _is_argument(key, value, known):
            arguments[key] = _argument(key, value, known[key].annotation, problems)
        elif field in FIELDS:
            overrides[key] = value
        else:
            wrong = _("'{name}' has no argument '{key}', and a spec has no such field",
                      name=name, key=key)
            problems.append(("", wrong, near_miss(field, dict.fromkeys([*known, *FIELDS]))))
    if problems:
        raise to_error("model", problems)
    # An object under the name of an argument (positions: {kind: rotary, theta: 5e5}) replaces it.
    return arguments | overrides


def _argument(key: str, value: Any, annotation: Any, problems: list[FieldProblem]) -> Any:
    from pydantic import ValidationError

    try:
        value = adapter(annotation).validate_python(value)
    except ValidationError as error:
        wrong = _("cannot be {value}", value=displayed(value))
        problems.append((key, wrong, expected_value(error.errors()[0])))
    else:
        if type(value) is int and value not in (limit := argument_limit(key)):
            wrong = _("cannot be {value}", value=format_number(value))
            problems.append((key, wrong, limit.right()))
    return value


def argument_limit(key: str) -> NumberRange:
    """The range of a whole number among the arguments of a preset: that of the spec's field."""
    field = {"layers": "repeat"}.get(key, key)
    return NumberRange(0 if key in MAY_BE_ZERO else 1, MOST.get(field, MAX_WIDTH))


# ── Overrides ─────────────────────────────────────────────────────────────────────────────────────
def _set_value(tree: Any, path: str, value: Any, where: str) -> None:
    """Replace the value at `path`; spec_io checks the result."""
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
        new_fields = {field.name for field in fields(chosen)}
        for name in set(node) - new_fields:  # fields that both kinds have keep their values
            del node[name]
    if last in CHOICES and isinstance(value, str):
        value = {"kind": value}
    node[_known(node, last, path, where) if isinstance(node, list) else last] = value


def _known(node: Any, key: str, here: str, where: str) -> Any:
    """The key of a dict or the index of a list; an error if there is none."""
    keys = {str(index): index for index in (range(len(node)) if isinstance(node, list) else node)}
    if key not in keys:
        raise QkvError(where, _("the spec has no '{here}'", here=here), near_miss(key, keys))
    return keys[key]


def _parse_numbers(value: Any) -> Any:
    """The value with strings such as 1e6 as numbers."""
    match value:
        case dict(): return {key: _parse_numbers(part) for key, part in value.items()}
        case list(): return [_parse_numbers(part) for part in value]
        case str() if SCIENTIFIC.fullmatch(value): return float(value)
        case _: return value
