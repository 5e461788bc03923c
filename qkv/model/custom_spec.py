"""The spec of a custom part. See docs/guides/custom-parts.md."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Custom"]


@dataclass(frozen=True)
class Custom:
    """A class of your own as a part of a spec; see model/custom.py.

    >>> Custom("my_package.positions:Alibi", {"slope": 0.5}).path
    'my_package.positions:Alibi'

    Attributes:
        path: The import path, "package.module:Class".
        arguments: The keyword arguments of the class.
        kind: "custom", in model.json.
    """

    path: str
    arguments: dict[str, bool | int | float | str] = field(default_factory=dict, hash=False)
    kind: Literal["custom"] = "custom"
