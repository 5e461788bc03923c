"""Check the arguments of the Python API: texts, and settings with their types and names.

An error names the argument, its value and type, and what would be right.
"""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import fields, replace
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from qkv.errors import QkvError, near_miss
from qkv.limits import format_number
from qkv.messages import N_, _

Settings = TypeVar("Settings")
MAX_SHOWN = 40  # characters of a value in a message
EXPECTED = {
    int: N_("use a whole number"),
    float: N_("use a number"),
    bool: N_("use True or False"),
    str: N_("use a str"),
    tuple[int, ...]: N_("use a list of whole numbers"),
    tuple[str, ...]: N_("use a str or a list of str"),
}


# ── Texts ────────────────────────────────────────────────────────────────────────────────────────
def check_text(name: str, text: object) -> str:
    """Return the text; `name` is the argument in the error for any other type."""
    if isinstance(text, str):
        return text
    raise wrong_type(name, text, _("give a text (str)"))


def check_texts(name: str, texts: object) -> list[str]:
    """Return the texts as a list; one str, which is a sequence of characters, is an error too.

    >>> check_texts("texts", ("a", "b"))
    ['a', 'b']
    """
    if not isinstance(texts, Iterable) or isinstance(texts, str | bytes | Mapping | Set):
        raise wrong_type(name, texts, _("give a list of texts (str)"))
    return [check_text(f"{name}[{index}]", text) for index, text in enumerate(texts)]


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────
def with_settings(
    kind: type[Settings], config: Settings | None, settings: Mapping[str, Any]
) -> Settings:
    """Return `config`, or the defaults of `kind`, with these fields changed."""
    if config is None:
        config = kind()
    if not isinstance(config, kind):
        right = _("give a {kind}, or its fields by name", kind=kind.__name__)
        raise wrong_type("config", config, right)
    known = [field.name for field in fields(config)]  # type: ignore[arg-type]
    for name in settings:
        if name not in known:
            raise QkvError(name, _("no such setting"), near_miss(name, known))
    return replace(config, **settings) if settings else config  # type: ignore[type-var]


def check_types(settings: Any) -> None:
    """Check each field of a frozen dataclass by its annotation.

    Numbers of numpy become those of Python, and lists become tuples.
    """
    for name, kind in _annotations(cast(Hashable, type(settings))).items():
        object.__setattr__(settings, name, check_type(name, getattr(settings, name), kind))


def check_type(name: str, value: object, kind: Any) -> Any:
    """Return the value as `plain` does; an error if it does not have the type `kind`."""
    value = plain(value)
    if not accepts(kind, value):
        expected = [EXPECTED[part] for part in EXPECTED if part in (kind, *get_args(kind))]
        raise wrong_type(name, value, _(expected[-1]))
    return value


@cache
def _annotations(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(cast(type, kind))


def plain(value: object) -> object:
    """Return numbers of numpy as int or float, a list as a tuple, other values unchanged."""
    if isinstance(value, bool | str | None):
        return value
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def accepts(kind: Any, value: object) -> bool:
    """Whether a value has the type of an annotation; a bool is not a number.

    >>> accepts(int, 3), accepts(int, 2.5), accepts(float, True), accepts(int | None, None)
    (True, False, False, True)
    """
    if get_origin(kind) is UnionType:
        return any(accepts(part, value) for part in get_args(kind))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return isinstance(value, tuple) and all(accepts(item, part) for part in value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def wrong_type(name: str, value: object, right: str) -> QkvError:
    """Return the error for a value of the wrong type."""
    wrong = _("cannot be {value} ({type})", value=displayed(value), type=type(value).__name__)
    return QkvError(name, wrong, right)


def displayed(value: object) -> str:
    """A value in a message: its `repr` on one line, cut at MAX_SHOWN characters."""
    if isinstance(value, int) and value.bit_length() > MAX_SHOWN:
        return format_number(value)  # Python refuses to write out more than 4,300 digits
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
