"""Imports point one way, as docs and design say: text and model know nobody, the rest only what stands below it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qkv

ROOT = Path(qkv.__path__[0])
BASE = {"errors", "language", "native", "threads"}
FLOORS = [
    {"text", "model"},
    {"data", "generate", "measure", "checkpoint"},
    {"train", "explore", "study"},
    {"pipeline", "serve", "cli", "allocator", "__init__", "__main__"},
]
MODULES = {
    ".".join(("qkv", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in sorted(ROOT.rglob("*.py"))
}  # fmt: skip


def part_of(module: str) -> str:
    """The part of the house a module stands in: qkv.model.view -> model; qkv itself is its door."""
    return [*module.split("."), "__init__"][1]


def imported_by(path: Path) -> set[str]:
    """Every module of ours that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports of ours in full"
            package = str(node.module)
            names = {f"{package}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES or f"{name}.__init__" in MODULES else package for name in names}
    return {name for name in found if name.split(".")[0] == "qkv"}


def may_know(part: str) -> set[str]:
    """Itself, the floors below it, and what everyone needs; the textbook is open to all but text and model."""
    if part in BASE | {"textbook"}:
        return BASE | {part} if part in BASE else {part}
    floor = next((index for index, parts in enumerate(FLOORS) if part in parts), None)
    assert floor is not None, f"qkv/{part} is new: say in FLOORS where it stands"
    if floor == 0:
        return BASE | {part}
    below = set().union(*FLOORS[:floor])
    return BASE | {"textbook", part} | below | (FLOORS[3] if floor == 3 else set())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_below_it(module):
    known = {part_of(name) for name in imported_by(MODULES[module])}
    assert known <= may_know(part_of(module)), f"{module} knows {sorted(known - may_know(part_of(module)))}"


def test_the_check_sees_the_imports_it_judges():
    assert "qkv.model.view" in imported_by(MODULES["qkv.model.attention"])
    assert imported_by(MODULES["qkv.model.transformer"]) >= {"qkv.errors", "qkv.model.spec"}


def packages_after(code: str) -> set[str]:
    """The top-level packages that a fresh Python holds after running `code`."""
    show = "; import sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + show], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_model_adds_nothing_but_torch():
    added = packages_after("import torch, qkv.model.transformer, qkv.model.presets") - packages_after("import torch")
    assert {name for name in added if name not in sys.stdlib_module_names} == {"qkv"}
    assert "pydantic" not in added


def test_a_spec_is_a_value_that_needs_no_torch():
    assert "torch" not in packages_after("import qkv.model.presets, qkv.model.door")
