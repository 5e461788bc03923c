"""Declare the parameters of a command by their defaults and help texts."""

from collections.abc import Callable
from typing import Any

from typer import Argument, CallbackParam, Option

from qkv.limits import NumberRange, format_number
from qkv.messages import _


def option(
    default: Any, explanation: str, *names: str, limit: NumberRange | None = None, **settings: Any
) -> Any:
    """An option with its help text, which is translated.

    The default `...` means required, or, inside Annotated, that the signature has the default.
    `limit` is the range of a number that no config checks.
    """
    help_text = _(explanation)
    if limit is not None:
        least, most = format_number(limit.least), format_number(limit.most)
        help_text = _("{help}; {least} to {most}", help=help_text, least=least, most=most)
        settings["callback"] = _check_of(limit)
    return Option(default, *names, help=help_text, **settings)


def _check_of(limit: NumberRange) -> Callable[[CallbackParam, Any], Any]:
    """A callback that checks the range: typer's own check accepts NaN."""

    def check(parameter: CallbackParam, value: Any) -> Any:
        limit.check(parameter.opts[0], value)
        return value

    return check


def argument(default: Any, explanation: str, **settings: Any) -> Any:
    """An argument of a command, as `option`."""
    return Argument(default, help=_(explanation), **settings)
