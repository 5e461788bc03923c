"""The door of the model: JSON in, a checked Spec out, or one line that says what is wrong and what would be right.

In: the text of model.json, or a Spec made in Python. Out: the same tree, proven possible.
Told in docs/model.md, "What can be wrong".
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from typing import Any, get_args

from qkv.errors import QkvError, expected_value, near_miss
from qkv.messages import _
from qkv.model import spec as s
from qkv.model.possible import Problem, problems_of


def to_json(spec: s.Spec) -> str:
    """The tree as text; from_json(to_json(spec)) == spec."""
    return json.dumps(asdict(spec), indent=2) + "\n"


def from_json(text: str, where: str = "model.json") -> s.Spec:
    """The tree that `text` tells; all unknown, missing or impossible fields are named in one message."""
    from pydantic import ValidationError

    try:
        spec = _reader().validate_json(text, strict=True)
    except ValidationError as error:
        raise complaint(where, _explain_all(error.errors(), text)) from None
    problems = [*_wrong_kinds(json.loads(text)), *problems_of(spec)]
    if problems:
        raise complaint(where, problems)
    return spec


def check(spec: s.Spec, where: str = "spec") -> None:
    """Raise one message with every impossible value, its path and the remedy."""
    problems = problems_of(spec)
    if problems:
        raise complaint(where, problems)


@cache
def _reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(s.Spec)


def complaint(where: str, problems: list[Problem]) -> QkvError:
    """One error that names all problems."""
    first, *rest = problems
    more = "".join(f" | {path}: {wrong}; {right}" if path else f" | {wrong}; {right}" for path, wrong, right in rest)
    return QkvError(f"{where}, {first[0]}" if first[0] else where, first[1], first[2] + more)


def _explain_all(errors: list[Any], text: str) -> list[Problem]:
    """Pydantic's findings in our words; of a union only the member whose kind the file names has a say."""
    if errors[0]["type"] == "json_invalid":
        return [("", _("is not JSON"), str(errors[0]["ctx"]["error"]))]
    tree = json.loads(text)
    told = [_explain(error) for error in errors if _concerns(error["loc"], tree)]
    return list(dict.fromkeys([*_wrong_kinds(tree), *told]))  # each once, though each type of a union complains


def _wrong_kinds(tree: Any, location: tuple[Any, ...] = ()) -> Iterator[Problem]:
    """Where there is a choice of types the file must name one, and one that is there."""
    for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        here = (*location, key)
        yield from _wrong_kinds(part, here)
        if key in CHOICES and isinstance(part, dict) and part.get("kind") not in list(CHOICES[key]):
            wrong = _("no kind '{kind}'", kind=part['kind']) if "kind" in part else _("the kind is missing")
            yield _path(here), wrong, near_miss(str(part.get("kind", "")), CHOICES[key])


def _explain(error: Any) -> Problem:
    """One of pydantic's findings in our words."""
    kind, name, path = error["type"], str(error["loc"][-1]) if error["loc"] else "", _path(error["loc"])
    if kind == "unexpected_keyword_argument":
        wrong = _("no field '{name}'", name=name)
        return _path(error["loc"][:-1]), wrong, near_miss(name, _field_names())
    if kind in ("missing", "missing_argument"):
        return path, _("is missing"), _("write it down")
    return path, _("cannot be {input!r}", input=error['input']), expected_value(error)


def _path(location: tuple[Any, ...]) -> str:
    """Where a person finds it in the file: decoder.0.mixer; the types that pydantic tried are left out."""
    shown = [part for part in location if part not in _KIND_OF]
    return ".".join(str(part) for index, part in enumerate(shown) if part != "layers" or index == len(shown) - 1)


def _concerns(location: tuple[Any, ...], tree: Any) -> bool:
    """Whether the types tried on the way are those that the file names by their kind."""
    for part in location:
        if isinstance(tree, dict) and (part in tree or part not in _KIND_OF):
            tree = tree.get(part)
        elif isinstance(tree, dict) and _KIND_OF[part] not in (None, tree.get("kind")):
            return False
        elif isinstance(tree, list) and isinstance(part, int):
            tree = tree[part]
    return True


_TYPES = (
    s.Sinusoidal, s.Learned, s.LinearScaling, s.LlamaScaling, s.YarnScaling, s.Rotary, s.NoPositions, s.Heads, s.Latent,
    s.Recurrent, s.Convolution, s.TokenMlp, s.Pooling, s.Dense, s.Gated, s.Experts, s.Norm, s.Layer, s.Stack, s.LmHead,
    s.MaskedHead, s.Pooler, s.Spec,
)  # fmt: skip
# pydantic writes the types it tried into the path; a person looks for the path in the file.
_KIND_OF = {t.__name__: getattr(t, "kind", None) if t is not s.Norm else None for t in _TYPES}


# Where there is a choice of types: field -> kind -> type.
CHOICES: dict[str, dict[str, type]] = {
    field: {t.kind: t for t in get_args(union)}
    for field, union in (
        ("positions", s.Positions), ("scaling", s.LinearScaling | s.LlamaScaling | s.YarnScaling), ("mixer", s.Mixer),
        ("feed_forward", s.FeedForward), ("each", s.Dense | s.Gated), ("shared", s.Dense | s.Gated), ("head", s.Head),
    )
}  # fmt: skip


def _field_names() -> list[str]:
    return sorted({field.name for t in _TYPES for field in fields(t)})
