"""Validate JSON or YAML values with pydantic; report all its errors as one QkvError.

The error names every wrong field, its value and what would be right, in the user's language.
"""

import re
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

from qkv.errors import QkvError, near_miss
from qkv.messages import _

Kind = TypeVar("Kind")


class FieldProblem(NamedTuple):
    """A wrong field: its path in the file, what is wrong, what would be right."""

    path: str
    wrong: str
    right: str


def read_as(kind: type[Kind], tree: object, where: object) -> Kind:
    """Build the dataclass `kind` from `tree`; `where` names the file in messages."""
    from pydantic import ValidationError

    try:
        return cast(Kind, adapter(cast(Hashable, kind)).validate_python(tree))
    except ValidationError as error:
        known = [field.name for field in fields(cast(Any, kind))]
        raise to_error(where, [explain(details, known) for details in error.errors()]) from None


@cache
def adapter(kind: Hashable) -> Any:
    """Pydantic's TypeAdapter of a type, built once."""
    from pydantic import TypeAdapter

    return TypeAdapter(cast(type, kind))


def explain(error: Any, known: Iterable[str], omit: Container[object] = ()) -> FieldProblem:
    """Convert a pydantic error; `known` are the field names, `omit` path parts not in the file."""
    location = [str(part) for part in error["loc"] if part not in omit]
    path, kind, value = ".".join(location), error["type"], error["input"]
    if kind == "unexpected_keyword_argument":
        name = location[-1]
        return FieldProblem(
            ".".join(location[:-1]), _("no field '{name}'", name=name), near_miss(name, known)
        )
    if kind in ("missing", "missing_argument"):
        return FieldProblem(path, _("is missing"), _("add this field"))
    wrong = _("cannot be {value!r}", value=value)
    if kind == "literal_error":
        return FieldProblem(
            path, wrong, near_miss(str(value), re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        )
    return FieldProblem(path, wrong, right_type(kind) or str(error["msg"]))


def right_type(kind: str) -> str:
    """What to write instead, by the first word of pydantic's error type; "" for other types."""
    return {
        "int": _("use a whole number"),
        "float": _("use a number"),
        "bool": _("use true or false"),
        "tuple": _("use a list"),
        "string": _("use text, in quotes if it looks like something else"),
        "dataclass": _("use an object"),
    }.get(kind.partition("_")[0], "")


def to_error(where: object, problems: Sequence[FieldProblem]) -> QkvError:
    """One QkvError for all problems: the first is `where`, the others follow it."""
    first, *rest = dict.fromkeys(problems)  # without duplicates
    more = "".join(
        f" | {path}: {wrong}; {right}" if path else f" | {wrong}; {right}"
        for path, wrong, right in rest
    )
    return QkvError(
        f"{where}, {first.path}" if first.path else where, first.wrong, first.right + more
    )
