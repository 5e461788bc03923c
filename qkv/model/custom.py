"""Custom parts: classes of the caller's code as position encoding, token mixer or feed-forward.

The spec names a class by its import path. A file never decides what is imported: a class is
imported only if the caller has allowed its path. See docs/guides/custom-parts.md.
"""

import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from importlib import import_module
from typing import Any

from qkv.arguments import displayed
from qkv.errors import QkvError
from qkv.messages import _
from qkv.model.spec import Custom

IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")  # package.module:Class
_allowed: ContextVar[frozenset[str]] = ContextVar("allowed", default=frozenset())


@contextmanager
def allow_custom(paths: Iterable[str]) -> Iterator[None]:
    """Allow these import paths, "package.module:Class", inside the `with` statement."""
    token = add_allowed(paths)
    try:
        yield
    finally:
        _allowed.reset(token)


def add_allowed(paths: Iterable[str]) -> Token[frozenset[str]]:
    """Allow these import paths in addition to those allowed already, until the token is reset."""
    if isinstance(paths, str):
        right = _("give a list of import paths, such as ['package.module:Class']")
        raise QkvError("custom", _("cannot be {value}", value=displayed(paths)), right)
    return _allowed.set(_allowed.get() | {check_import_path(path) for path in paths})


def allowed_paths() -> frozenset[str]:
    """The import paths that are allowed."""
    return _allowed.get()


def check_import_path(path: Any) -> str:
    """Raise an error unless it is a string of the form package.module:Class."""
    if not isinstance(path, str) or not IMPORT_PATH.fullmatch(path):
        right = _("give an import path of the form package.module:Class")
        raise QkvError("custom", _("cannot be {value}", value=displayed(path)), right)
    return path


def make_custom(part: Custom, base: type, *sizes: Any) -> Any:
    """Build a custom part: its class with the sizes of the model and the part's arguments."""
    if part.path not in _allowed.get():
        wrong = _("a custom part, which runs code of your own or of somebody else")
        right = _("if you trust it, pass custom=['{path}'] (command line: --custom {path})",
                  path=part.path)
        raise QkvError(part.path, wrong, right)
    module_name, _colon, name = part.path.partition(":")
    try:
        found = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        right = _("is its folder on the import path?")
        raise QkvError(part.path, _("cannot be imported ({error})", error=error), right) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        wrong = _("is not a subclass of {base}", base=f"{base.__module__}.{base.__name__}")
        raise QkvError(part.path, wrong, _("derive it from that class"))
    try:
        inspect.signature(found).bind(*sizes, **part.arguments)
    except TypeError as error:
        raise QkvError(part.path, str(error), _("correct its arguments in the spec")) from error
    module: Any = found(*sizes, **part.arguments)
    module.custom_part = part  # it has initialized its weights itself
    return module
