"""Validate JSON or YAML values with pydantic; report all its errors as one QkvError.

The error names every wrong field, its value and what would be right, in the user's language.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from qkv.arguments import displayed
from qkv.errors import QkvError, expected_value, near_miss
from qkv.messages import MAX_LISTED, N_, _, cut

Kind = TypeVar("Kind")
FieldProblem = tuple[str, str, str]  # path in the file, what is wrong, what would be right


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


def dotted(location: Iterable[object]) -> str:
    """The path of a value in the file: ("names", 0) -> names.0."""
    return ".".join(map(str, location))


def explain(
    error: Any,
    known: Iterable[str],
    path_of: Callable[[tuple[Any, ...]], str] = dotted,
    if_missing: str = N_("add this field"),
) -> FieldProblem:
    """Convert a pydantic error; `known` are the field names, `path_of` converts its location."""
    kind, location = error["type"], error["loc"]
    if kind == "unexpected_keyword_argument":
        name = str(location[-1])
        return path_of(location[:-1]), _("no field '{name}'", name=name), near_miss(name, known)
    if kind in ("missing", "missing_argument"):
        return path_of(location), _("is missing"), _(if_missing)
    wrong = _("cannot be {value}", value=displayed(error["input"]))
    return path_of(location), wrong, expected_value(error)


def to_error(where: object, problems: Iterable[FieldProblem]) -> QkvError:
    """One QkvError for all problems; the path of the first belongs to `where`."""
    (path, wrong, right), *rest = dict.fromkeys(problems)  # without duplicates
    more = [f"{at}: {what}; {remedy}" if at else f"{what}; {remedy}" for at, what, remedy in rest]
    right = " | ".join([right, *cut(more, MAX_LISTED - 1)])
    return QkvError(f"{where}, {path}" if path else where, wrong, right)
