"""No definition has a name of tests/banned_names.txt: names are the standard terms of the field."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "tests" / "banned_names.txt").read_text(encoding="utf-8").splitlines()
BANNED = dict(line.split(": ", 1) for line in LINES if line and not line.startswith("#"))
# The built-in grammar has words such as "place"; the fixtures are written by an old version.
EXEMPT = ("qkv/data/builtin/", "tests/fixtures/")
SOURCES = [
    path
    for folder in ("qkv", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not str(path.relative_to(ROOT)).startswith(EXEMPT)
]


def definitions(path: Path) -> Iterator[tuple[int, str]]:
    """Modules, classes, functions, parameters, fields and module constants, with their lines."""
    yield 1, path.stem
    yield 1, f"module {path.stem}"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        if isinstance(node, ast.ClassDef | ast.Module):
            yield from assigned(node.body)


def assigned(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets += [statement.target] if isinstance(statement, ast.AnnAssign) else []
        for target in targets:
            yield from (
                (name.lineno, name.id) for name in ast.walk(target) if isinstance(name, ast.Name)
            )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_definitions_have_standard_names(path):
    found = [
        f"{path.name}:{line} {name}: use {BANNED[name]}"
        for line, name in definitions(path)
        if name in BANNED
    ]
    assert found == []
