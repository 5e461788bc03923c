"""Declare the parameters of a command by their defaults and help texts."""

from typing import Any

from typer import Argument, Option

from qkv.messages import _


def option(default: Any, explanation: str, *names: str, **settings: Any) -> Any:
    """An option with its help text, which is translated.

    The default `...` means required, or, inside Annotated, that the signature has the default.
    """
    return Option(default, *names, help=_(explanation), **settings)


def argument(default: Any, explanation: str, **settings: Any) -> Any:
    """An argument of a command, as `option`."""
    return Argument(default, help=_(explanation), **settings)
