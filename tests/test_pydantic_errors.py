"""Pydantic's errors become one line in the user's language that names every wrong field."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest

from qkv.errors import QkvError
from qkv.messages import set_language
from qkv.pydantic_errors import read_as


@dataclass(frozen=True)
class Point:
    __pydantic_config__: ClassVar = {"extra": "forbid"}

    x: int
    kind: Literal["small", "large"] = "small"
    ratio: float = 0.0
    names: tuple[str, ...] = ()
    closed: bool = False


def test_values_are_read_into_the_dataclass():
    assert read_as(Point, {"x": 3, "names": ["a", "b"]}, "p.json") == Point(3, names=("a", "b"))


@pytest.mark.parametrize(
    "tree, line",
    [
        ({}, "p.json, x: is missing; add this field"),
        ({"x": "a"}, "p.json, x: cannot be 'a'; use a whole number"),
        ({"x": 1, "kinds": "large"}, "p.json: no field 'kinds'; did you mean 'kind'?"),
        ({"x": 1, "kind": "lage"}, "p.json, kind: cannot be 'lage'; did you mean 'large'?"),
        ({"x": 1, "ratio": []}, "p.json, ratio: cannot be []; use a number"),
        ({"x": 1, "names": 4}, "p.json, names: cannot be 4; use a list"),
        (
            {"x": 1, "names": [4]},
            "p.json, names.0: cannot be 4; use text, in quotes if it looks like something else",
        ),
        ({"x": 1, "closed": "perhaps"}, "p.json, closed: cannot be 'perhaps'; use true or false"),
        ([1], "p.json: cannot be [1]; use an object"),
        (
            {"x": None, "ratio": "b"},
            "p.json, x: cannot be None; use a whole number | ratio: cannot be 'b'; use a number",
        ),
    ],
)
def test_errors_are_reported_in_one_line(tree, line):
    with pytest.raises(QkvError) as error:
        read_as(Point, tree, "p.json")
    assert str(error.value) == line


def test_the_error_is_in_the_users_language():
    set_language("zh")
    try:
        with pytest.raises(QkvError) as error:
            read_as(Point, {"x": 1.5}, "p.json")
    finally:
        set_language("en")
    assert str(error.value) == "p.json, x: 不能是 1.5; 请用整数"
